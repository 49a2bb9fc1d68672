if HAVE_GTEST
check_PROGRAMS += tests/unit/side_test
tests_unit_side_test_SOURCES = tests/unit/side_test.cc
tests_unit_side_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_side_test_LDADD = src/libftcore.la $(gtest_libs)
TESTS += tests/unit/side_test
endif
