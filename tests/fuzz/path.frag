check_PROGRAMS += tests/fuzz/fuzz_path
TESTS += tests/fuzz/fuzz_path
tests_fuzz_fuzz_path_SOURCES = tests/fuzz/fuzz_path.c tests/fuzz/driver.c
tests_fuzz_fuzz_path_LDADD = src/libftcore.la
