check_PROGRAMS += tests/fuzz/fuzz_auth
tests_fuzz_fuzz_auth_SOURCES = tests/fuzz/fuzz_auth.c tests/fuzz/driver.c
tests_fuzz_fuzz_auth_LDADD = src/libftcore.la
TESTS += tests/fuzz/fuzz_auth
