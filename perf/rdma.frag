# In the machine of tests/rdma: perf/rdma, a link over RDMA beside the devices alone; perf/rdma_mpi,
# an all-reduce beside MPICH's.
EXTRA_DIST += perf/rdma tests/rdma/guest/numbers perf/rdma_mpi tests/rdma/guest/mpi
if HAVE_VERBS
noinst_PROGRAMS += perf/rdma_loop
perf_rdma_loop_SOURCES = perf/rdma_loop.c
perf_rdma_loop_CFLAGS = $(AM_CFLAGS) $(VERBS_CFLAGS)
perf_rdma_loop_LDADD = $(VERBS_LIBS)
endif
