src_libftcore_la_SOURCES += src/diagnose/diagnose.h src/diagnose/hang.h src/diagnose/hang.c \
	src/diagnose/index.c src/diagnose/graph.c src/diagnose/causes.c \
	src/diagnose/failures.c src/diagnose/lost.c src/diagnose/waits.c \
	src/diagnose/text.c
include src/diagnose/slow.frag
