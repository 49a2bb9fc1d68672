noinst_PROGRAMS += perf/member_steps perf/member_setup
perf_member_steps_SOURCES = perf/member_steps.c perf/rounds.h
perf_member_steps_LDADD = src/libftccl.la
perf_member_setup_SOURCES = perf/member_setup.c perf/rounds.h
perf_member_setup_LDADD = src/libftccl.la
