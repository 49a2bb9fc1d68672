src_libftcore_la_SOURCES += src/diagnose/diagnose.h src/diagnose/hang.h src/diagnose/hang.c \
	src/diagnose/index.c src/diagnose/graph.c src/diagnose/causes.c \
	src/diagnose/failures.c src/diagnose/lost.c src/diagnose/waits.c \
	src/diagnose/text.c src/diagnose/merge.c src/diagnose/report.c \
	src/diagnose/places.c src/diagnose/evidence.c \
	src/diagnose/stacks.h src/diagnose/stacks.c src/diagnose/stacks_read.c \
	src/diagnose/stacks_report.c src/diagnose/validation.c
include src/diagnose/slow.frag
