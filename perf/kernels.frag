# what the host device's kernels reach against memcpy
noinst_PROGRAMS += perf/kernels
perf_kernels_SOURCES = perf/kernels.c
perf_kernels_LDADD = src/libftcore.la
