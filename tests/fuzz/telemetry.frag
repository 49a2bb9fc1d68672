check_PROGRAMS += tests/fuzz/fuzz_telemetry
TESTS += tests/fuzz/fuzz_telemetry
tests_fuzz_fuzz_telemetry_SOURCES = tests/fuzz/fuzz_telemetry.c
tests_fuzz_fuzz_telemetry_LDADD = src/libftcore.la
