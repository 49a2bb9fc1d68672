check_PROGRAMS += tests/fuzz/fuzz_managed
TESTS += tests/fuzz/fuzz_managed
tests_fuzz_fuzz_managed_SOURCES = tests/fuzz/fuzz_managed.c tests/fuzz/driver.c
tests_fuzz_fuzz_managed_LDADD = src/libftcore.la
