# variables in the environment
if HAVE_GTEST
check_PROGRAMS += tests/unit/params_test
TESTS += tests/unit/params_test
tests_unit_params_test_SOURCES = tests/unit/params_test.cc
tests_unit_params_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_params_test_LDADD = src/libftcore.la $(gtest_libs)
endif
