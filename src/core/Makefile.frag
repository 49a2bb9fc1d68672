# The core's three floors; calls go down only: group -> run -> engine (tests/tidy/calls_test.sh).
src_libftcore_la_SOURCES += src/core/core.h $(engine_sources) $(run_sources) $(group_sources)
engine_sources = src/core/engine/engine.h src/core/engine/internal.h src/core/engine/engine.c \
	src/core/engine/drive.c src/core/engine/peer.c src/core/engine/roster.c \
	src/core/engine/links.c src/core/engine/control.c src/core/engine/heartbeat.c \
	src/core/engine/death_watch.c src/core/engine/endpoint.c src/core/engine/cores.c \
	src/core/engine/locality.c src/core/engine/memory.c src/core/engine/overlay.c
run_sources = src/core/run/run.h src/core/run/stream.h src/core/run/fast_path.h src/core/run/gpu.h \
	src/core/run/pass.h src/core/run/verify.h \
	src/core/run/comm_state.c src/core/run/failure.c src/core/run/calls.c src/core/run/plans.c \
	src/core/run/op.c src/core/run/stream.c src/core/run/work.c src/core/run/waits.c \
	src/core/run/lanes.c src/core/run/lanes_copy.c src/core/run/lanes_drop.c \
	src/core/run/lanes_short.c src/core/run/p2p.c \
	src/core/run/rma.c src/core/run/fast_path.c src/core/run/fuse.c src/core/run/preserve.c \
	src/core/run/verify.c src/core/run/readiness.c src/core/run/pass.c src/core/run/gpu.c \
	src/core/run/gpu_blocking.c src/core/run/graph.c
group_sources = src/core/group/group.h src/core/group/reshape.h src/core/group/growth.h \
	src/core/group/member.h src/core/group/member.c \
	src/core/group/rank.c src/core/group/comm.c src/core/group/notice.c src/core/group/cause.c \
	src/core/group/agreement.c src/core/group/retry.c src/core/group/reshape.c \
	src/core/group/abandoned.c src/core/group/growth.c src/core/group/grow.c \
	src/core/group/grow_join.c src/core/group/init.c \
	src/core/group/validation.h src/core/group/validation.c src/core/group/measure.c
