check_PROGRAMS += tests/fuzz/fuzz_control
tests_fuzz_fuzz_control_SOURCES = tests/fuzz/fuzz_control.c tests/fuzz/wire.h tests/fuzz/driver.c
tests_fuzz_fuzz_control_LDADD = src/libftcore.la
TESTS += tests/fuzz/fuzz_control
