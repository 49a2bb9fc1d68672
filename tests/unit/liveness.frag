# life pages: proof of death
if HAVE_GTEST
check_PROGRAMS += tests/unit/liveness_test
TESTS += tests/unit/liveness_test
tests_unit_liveness_test_SOURCES = tests/unit/liveness_test.cc
tests_unit_liveness_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_liveness_test_LDADD = src/libftcore.la $(gtest_libs)
endif
