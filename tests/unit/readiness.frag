# what engines say of their operations to those that have met their pinned memory
if HAVE_GTEST
check_PROGRAMS += tests/unit/readiness_test
TESTS += tests/unit/readiness_test
tests_unit_readiness_test_SOURCES = tests/unit/readiness_test.cc
tests_unit_readiness_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_readiness_test_LDADD = src/libftcore.la $(gtest_libs)
endif
