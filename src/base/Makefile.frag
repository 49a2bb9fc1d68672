src_libftcore_la_SOURCES += src/base/base.h src/base/auth.h src/base/params.h src/base/wire.h \
	src/base/measures.h src/base/measures.c src/base/sig.h src/base/sig.c \
	src/base/status.c src/base/types.c src/base/env.c src/base/quick_clock.h \
	src/base/quick_clock.c src/base/params.c src/base/log.c \
	src/base/fork.c src/base/shmem.c src/base/arena.c src/base/pinned.c src/base/readiness.c \
	src/base/liveness.c src/base/host.c src/base/auth.c src/base/crc32c.c src/base/json.c
