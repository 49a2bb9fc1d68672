# what telemetry costs
noinst_PROGRAMS += perf/telemetry_cost
perf_telemetry_cost_SOURCES = perf/telemetry_cost.c
perf_telemetry_cost_LDADD = src/libftcore.la
