if HAVE_GTEST
check_PROGRAMS += tests/unit/bootstrap_test
tests_unit_bootstrap_test_SOURCES = tests/unit/bootstrap_test.cc tests/unit/bootstrap_helpers.h
tests_unit_bootstrap_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_bootstrap_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lpthread
TESTS += tests/unit/bootstrap_test

check_PROGRAMS += tests/unit/bootstrap_hostile_test
tests_unit_bootstrap_hostile_test_SOURCES = tests/unit/bootstrap_hostile_test.cc \
	tests/unit/bootstrap_helpers.h
tests_unit_bootstrap_hostile_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_bootstrap_hostile_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lpthread
TESTS += tests/unit/bootstrap_hostile_test

check_PROGRAMS += tests/unit/bootstrap_grow_test
tests_unit_bootstrap_grow_test_SOURCES = tests/unit/bootstrap_grow_test.cc \
	tests/unit/bootstrap_helpers.h
tests_unit_bootstrap_grow_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_bootstrap_grow_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lpthread
TESTS += tests/unit/bootstrap_grow_test
endif
