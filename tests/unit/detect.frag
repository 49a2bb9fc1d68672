# suspicion by heartbeats
if HAVE_GTEST
check_PROGRAMS += tests/unit/detect_test
TESTS += tests/unit/detect_test
tests_unit_detect_test_SOURCES = tests/unit/detect_test.cc
tests_unit_detect_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_detect_test_LDADD = src/libftcore.la $(gtest_libs)
endif
