check_PROGRAMS += tests/fuzz/fuzz_agree
tests_fuzz_fuzz_agree_SOURCES = tests/fuzz/fuzz_agree.c tests/fuzz/driver.c
tests_fuzz_fuzz_agree_LDADD = src/libftcore.la
TESTS += tests/fuzz/fuzz_agree
