# life pages: proof of death
if HAVE_GTEST
check_PROGRAMS += tests/unit/life_test
TESTS += tests/unit/life_test
tests_unit_life_test_SOURCES = tests/unit/life_test.cc
tests_unit_life_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_life_test_LDADD = src/libftcore.la $(gtest_libs)
endif
