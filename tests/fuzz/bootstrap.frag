check_PROGRAMS += tests/fuzz/fuzz_bootstrap
TESTS += tests/fuzz/fuzz_bootstrap
tests_fuzz_fuzz_bootstrap_SOURCES = tests/fuzz/fuzz_bootstrap.c
tests_fuzz_fuzz_bootstrap_LDADD = src/libftcore.la $(SODIUM_LIBS)
