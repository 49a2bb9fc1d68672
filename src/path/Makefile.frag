# which way through the network a source port takes
src_libftcore_la_SOURCES += src/path/path.h src/path/probe.h src/path/probe.c src/path/answer.c \
	src/path/socket.c src/path/classes.c src/path/cache.c src/path/finder.c \
	src/path/master.h src/path/master.c \
	src/path/message.c
# Who gets which path. The library has no use for it: ftccld does, and tests.
noinst_LTLIBRARIES += src/path/liballocate.la
src_path_liballocate_la_SOURCES = src/path/allocate.h src/path/allocate_parts.h \
	src/path/allocate.c src/path/topology.h src/path/topology.c
