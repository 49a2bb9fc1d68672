noinst_PROGRAMS += perf/recovery
perf_recovery_SOURCES = perf/recovery.c perf/rounds.h
perf_recovery_LDADD = src/libftccl.la
