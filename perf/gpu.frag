# On a GPU (tests/gpu/run): the kernels' bandwidth, how long a failure holds up the others, and the
# programs once more for libnccl.so.2, NVIDIA's or ours: the one that is loaded. Against NVIDIA's
# header if there is one.
noinst_LTLIBRARIES += perf/libgpu.la perf/libnccl_perf.la
perf_libgpu_la_SOURCES = perf/gpu.h perf/gpu.c
perf_libnccl_perf_la_SOURCES = $(perf_sources)
perf_libnccl_perf_la_CPPFLAGS = $(AM_CPPFLAGS) -DFT_PERF_NCCL $(CUDA_CPPFLAGS)
perf_libnccl_perf_la_LIBADD = perf/libgpu.la src/libnccl.la -lm
nccl_perf = perf/nccl_all_reduce_perf perf/nccl_all_gather_perf perf/nccl_reduce_scatter_perf \
	perf/nccl_broadcast_perf perf/nccl_sendrecv_perf
noinst_PROGRAMS += $(nccl_perf)
nccl_perf_cppflags = $(perf_libnccl_perf_la_CPPFLAGS)
perf_nccl_all_reduce_perf_SOURCES = perf/all_reduce.c
perf_nccl_all_reduce_perf_CPPFLAGS = $(nccl_perf_cppflags)
perf_nccl_all_reduce_perf_LDADD = perf/libnccl_perf.la
perf_nccl_all_gather_perf_SOURCES = perf/all_gather.c
perf_nccl_all_gather_perf_CPPFLAGS = $(nccl_perf_cppflags)
perf_nccl_all_gather_perf_LDADD = perf/libnccl_perf.la
perf_nccl_reduce_scatter_perf_SOURCES = perf/reduce_scatter.c
perf_nccl_reduce_scatter_perf_CPPFLAGS = $(nccl_perf_cppflags)
perf_nccl_reduce_scatter_perf_LDADD = perf/libnccl_perf.la
perf_nccl_broadcast_perf_SOURCES = perf/broadcast.c
perf_nccl_broadcast_perf_CPPFLAGS = $(nccl_perf_cppflags)
perf_nccl_broadcast_perf_LDADD = perf/libnccl_perf.la
perf_nccl_sendrecv_perf_SOURCES = perf/sendrecv.c
perf_nccl_sendrecv_perf_CPPFLAGS = $(nccl_perf_cppflags)
perf_nccl_sendrecv_perf_LDADD = perf/libnccl_perf.la
noinst_PROGRAMS += perf/gpu_kernels perf/gpu_recovery
perf_gpu_kernels_SOURCES = perf/gpu_kernels.c
perf_gpu_kernels_LDADD = perf/libgpu.la src/libftcore.la
perf_gpu_recovery_SOURCES = perf/gpu_recovery.c
perf_gpu_recovery_LDADD = perf/libgpu.la src/libftccl.la
