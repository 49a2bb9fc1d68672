src_libftcore_la_SOURCES += src/core/core.h src/core/stream.h src/core/control.h src/core/reshape.h src/core/op.c src/core/stream.c src/core/exec.c src/core/p2p.c src/core/comm.c src/core/direct.c src/core/fuse.c src/core/card.c src/core/preserve.c \
	src/core/control.c src/core/beat.c src/core/lives.c src/core/pact.c src/core/reshape.c src/core/quit.c src/core/growth.h src/core/growth.c src/core/grow.c src/core/grow_join.c \
	src/core/rma.c src/core/verify.c src/core/retry.c src/core/notice.c src/core/engine.c src/core/drive.c src/core/init.c src/core/near.c src/core/gpu.h src/core/gpu.c
