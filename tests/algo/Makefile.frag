# tests/algo
if HAVE_GTEST
algo_tests = tests/algo/proof_test tests/algo/checker_test tests/algo/select_test \
	tests/algo/passes_test
check_PROGRAMS += $(algo_tests)
TESTS += $(algo_tests)
SLOW_TESTS += tests/algo/proof_test
check_LTLIBRARIES += tests/algo/libchecker.la
tests_algo_libchecker_la_SOURCES = tests/algo/checker.cc tests/algo/checker.h
tests_algo_libchecker_la_CPPFLAGS = $(algo_test_cppflags)
tests_algo_libchecker_la_CXXFLAGS = $(AM_CXXFLAGS) -O2
algo_test_cppflags = $(gtest_cppflags)
algo_test_ldadd = tests/algo/libchecker.la src/libftcore.la $(GTEST_LIBS) -lgtest_main
tests_algo_proof_test_SOURCES = tests/algo/proof_test.cc
tests_algo_proof_test_CPPFLAGS = $(algo_test_cppflags)
tests_algo_proof_test_LDADD = $(algo_test_ldadd)
tests_algo_checker_test_SOURCES = tests/algo/checker_test.cc
tests_algo_checker_test_CPPFLAGS = $(algo_test_cppflags)
tests_algo_checker_test_LDADD = $(algo_test_ldadd)
tests_algo_select_test_SOURCES = tests/algo/select_test.cc
tests_algo_select_test_CPPFLAGS = $(algo_test_cppflags)
tests_algo_select_test_LDADD = $(algo_test_ldadd)
tests_algo_passes_test_SOURCES = tests/algo/passes_test.cc
tests_algo_passes_test_CPPFLAGS = $(algo_test_cppflags)
tests_algo_passes_test_LDADD = $(algo_test_ldadd)
endif
