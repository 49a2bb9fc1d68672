# perf/rdma: a link over RDMA beside the devices alone, in the machine of tests/rdma.
EXTRA_DIST += perf/rdma tests/rdma/guest/numbers
if HAVE_VERBS
noinst_PROGRAMS += perf/rdma_loop
perf_rdma_loop_SOURCES = perf/rdma_loop.c
perf_rdma_loop_CFLAGS = $(AM_CFLAGS) $(VERBS_CFLAGS)
perf_rdma_loop_LDADD = $(VERBS_LIBS)
endif
