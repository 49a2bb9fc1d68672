# cost as work grows
noinst_PROGRAMS += perf/footprint
perf_footprint_SOURCES = perf/footprint.c perf/rounds.h
perf_footprint_LDADD = src/libftccl.la
EXTRA_DIST += perf/scaling
