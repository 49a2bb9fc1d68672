# perf: nccl-tests' programs. The shared part is a convenience library; each program is one small
# file.
dist_man_MANS += man/ftccl-perf.1
noinst_LTLIBRARIES += perf/libperf.la
perf_sources = perf/api.h perf/api.c perf/perf.h perf/options.c perf/types.c perf/layouts.c \
	perf/launch.c perf/bootstrap.c perf/team.c perf/meet.h perf/meet.c perf/data.c \
	perf/verify.c perf/run.c perf/table.c perf/json.c perf/paths.c perf/main.c
perf_libperf_la_SOURCES = $(perf_sources)
perf_libperf_la_LIBADD = perf/libgpu.la src/libftccl.la -lm
# libftcore: what telemetry tells of a process is read in the process, for -P.
perf_libs = perf/libperf.la src/libftcore.la

bin_PROGRAMS += perf/all_reduce_perf perf/all_gather_perf perf/broadcast_perf perf/reduce_perf \
	perf/reduce_scatter_perf perf/alltoall_perf perf/alltoallv_perf perf/gather_perf \
	perf/scatter_perf perf/sendrecv_perf perf/hypercube_perf
perf_all_reduce_perf_SOURCES = perf/all_reduce.c
perf_all_reduce_perf_LDADD = $(perf_libs)
perf_all_gather_perf_SOURCES = perf/all_gather.c
perf_all_gather_perf_LDADD = $(perf_libs)
perf_broadcast_perf_SOURCES = perf/broadcast.c
perf_broadcast_perf_LDADD = $(perf_libs)
perf_reduce_perf_SOURCES = perf/reduce.c
perf_reduce_perf_LDADD = $(perf_libs)
perf_reduce_scatter_perf_SOURCES = perf/reduce_scatter.c
perf_reduce_scatter_perf_LDADD = $(perf_libs)
perf_alltoall_perf_SOURCES = perf/alltoall.c
perf_alltoall_perf_LDADD = $(perf_libs)
perf_alltoallv_perf_SOURCES = perf/alltoallv.c
perf_alltoallv_perf_LDADD = $(perf_libs)
perf_gather_perf_SOURCES = perf/gather.c
perf_gather_perf_LDADD = $(perf_libs)
perf_scatter_perf_SOURCES = perf/scatter.c
perf_scatter_perf_LDADD = $(perf_libs)
perf_sendrecv_perf_SOURCES = perf/sendrecv.c
perf_sendrecv_perf_LDADD = $(perf_libs)
perf_hypercube_perf_SOURCES = perf/hypercube.c
perf_hypercube_perf_LDADD = $(perf_libs)
include perf/telemetry.frag
include perf/kernels.frag
include perf/recovery.frag
include perf/member_steps.frag
include perf/scaling.frag
include perf/gpu.frag
include perf/fabrics.frag
include perf/clos.frag
# docs refer to the results
EXTRA_DIST += perf/results perf/tune perf/false_suspicions perf/healthy_cost \
	perf/call_instructions perf/responder_cost perf/registered perf/effective_time.py \
	perf/member_catch_up.py
include perf/compare.frag
include perf/rdma.frag
