# Not tests: jobs side by side, and faults, in the leaf-spine network of tests/clos.
EXTRA_DIST += perf/clos perf/clos_faults
# the allocation of paths to the connections of a large cluster, simulated
noinst_PROGRAMS += perf/allocate_perf
perf_allocate_perf_SOURCES = perf/allocate.c
perf_allocate_perf_LDADD = src/path/liballocate.la src/libftcore.la
