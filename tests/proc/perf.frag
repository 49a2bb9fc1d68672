# ftccl-run and the perf programs as a user runs them
TESTS += tests/proc/run_test.sh tests/proc/bind_test.sh tests/proc/perf_test.sh
SLOW_TESTS += tests/proc/perf_test.sh
EXTRA_DIST += tests/proc/run_test.sh tests/proc/bind_test.sh tests/proc/machines/container.xml \
	tests/proc/perf_test.sh
check_LTLIBRARIES += tests/proc/wrong_result.la
tests_proc_wrong_result_la_SOURCES = tests/proc/wrong_result.c
tests_proc_wrong_result_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
TESTS += tests/proc/elastic_test.sh
SLOW_TESTS += tests/proc/elastic_test.sh
EXTRA_DIST += tests/proc/elastic_test.sh
TESTS += tests/proc/compare_test.sh
SLOW_TESTS += tests/proc/compare_test.sh
EXTRA_DIST += tests/proc/compare_test.sh
TESTS += tests/proc/footprint_test.sh
EXTRA_DIST += tests/proc/footprint_test.sh
