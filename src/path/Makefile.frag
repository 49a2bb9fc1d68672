# which way through the network a source port takes
src_libftcore_la_SOURCES += src/path/path.h src/path/probe.h src/path/probe.c src/path/answer.c \
	src/path/socket.c src/path/classes.c src/path/cache.c src/path/finder.c
