# the clock of short calls
if HAVE_GTEST
check_PROGRAMS += tests/unit/quick_clock_test
TESTS += tests/unit/quick_clock_test
tests_unit_quick_clock_test_SOURCES = tests/unit/quick_clock_test.cc
tests_unit_quick_clock_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_quick_clock_test_LDADD = src/libftcore.la $(gtest_libs)
endif
