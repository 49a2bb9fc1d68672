if HAVE_GTEST
if HAVE_DAEMONS
check_PROGRAMS += tests/unit/master_test
TESTS += tests/unit/master_test
tests_unit_master_test_SOURCES = tests/unit/master_test.cc
tests_unit_master_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_unit_master_test_LDADD = tools/master/libmaster.la $(GTEST_LIBS) -lgtest_main
endif
endif
