check_PROGRAMS += tests/fuzz/fuzz_ras
TESTS += tests/fuzz/fuzz_ras
tests_fuzz_fuzz_ras_SOURCES = tests/fuzz/fuzz_ras.c tests/fuzz/driver.c
tests_fuzz_fuzz_ras_LDADD = src/libftcore.la
