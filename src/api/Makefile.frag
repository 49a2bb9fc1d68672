src_libftcore_la_SOURCES += src/api/api.h src/api/error.c src/api/handle.c src/api/config.c \
	src/api/comm.c \
	src/api/coll.c src/api/group.c src/api/mem.c src/api/rma.c src/api/survive.c \
	src/api/member.c \
	src/api/shim.c include/ftccl.h
