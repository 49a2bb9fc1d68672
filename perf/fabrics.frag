# Not tests: a link over a fabric beside the fabric alone.
EXTRA_DIST += perf/fabrics
if HAVE_LIBFABRIC
noinst_PROGRAMS += perf/ofi_loop
perf_ofi_loop_SOURCES = perf/ofi_loop.c
perf_ofi_loop_CFLAGS = $(AM_CFLAGS) $(LIBFABRIC_CFLAGS)
perf_ofi_loop_LDADD = $(LIBFABRIC_LIBS)
else
EXTRA_DIST += perf/ofi_loop.c
endif
