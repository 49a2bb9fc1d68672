# The perf programs' data, options and meetings
if HAVE_GTEST
check_PROGRAMS += tests/unit/perf_data_test tests/unit/perf_meet_test tests/unit/perf_options_test
TESTS += tests/unit/perf_data_test tests/unit/perf_meet_test tests/unit/perf_options_test
tests_unit_perf_data_test_SOURCES = tests/unit/perf_data_test.cc
tests_unit_perf_data_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_perf_data_test_LDADD = perf/libperf.la $(gtest_libs)
tests_unit_perf_meet_test_SOURCES = tests/unit/perf_meet_test.cc
tests_unit_perf_meet_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_perf_meet_test_LDADD = perf/libperf.la $(gtest_libs)
tests_unit_perf_options_test_SOURCES = tests/unit/perf_options_test.cc
tests_unit_perf_options_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_perf_options_test_LDADD = perf/libperf.la $(gtest_libs)
endif
TESTS += tests/unit/compare_test.sh tests/unit/tune_test.sh tests/unit/effective_time_test.sh
EXTRA_DIST += tests/unit/compare_test.sh tests/unit/compare_test.py tests/unit/tune_test.sh \
	tests/unit/tune_test.py tests/unit/effective_time_test.sh tests/unit/effective_time_test.py
