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
# `make check` makes some runs, `make check-replicas` 200 (RUNS=20: that many).
TESTS += tests/proc/replicas_test.sh tests/proc/replicas_hosts_test.sh
SLOW_TESTS += tests/proc/replicas_test.sh tests/proc/replicas_hosts_test.sh
EXTRA_DIST += tests/proc/replicas_test.sh tests/proc/replicas_hosts_test.sh
if HAVE_CURL
replicas_programs = tools/ftccl-run examples/replicas
if HAVE_DAEMONS
replicas_programs += tools/ftccld
endif
endif
# The same for faults of the coordinator, of the ways to it and of clocks, and for ranks that say a
# wrong step: `make check-members`.
TESTS += tests/proc/member_faults_test.sh
SLOW_TESTS += tests/proc/member_faults_test.sh
EXTRA_DIST += tests/proc/member_faults_test.sh tests/proc/member_faults.py \
	tests/proc/member_clocks.py
check_LTLIBRARIES += tests/proc/liar.la
tests_proc_liar_la_SOURCES = tests/proc/liar.c
tests_proc_liar_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
tests_proc_liar_la_LIBADD = -ldl
check-members: $(replicas_programs) tests/proc/liar.la
	top_srcdir='$(top_srcdir)' $(SHELL) $(top_srcdir)/tests/proc/member_faults_test.sh $(RUNS)
RUNS = 200
check-replicas: $(replicas_programs)
	$(SHELL) $(top_srcdir)/tests/proc/replicas_test.sh $(RUNS)
.PHONY: check-replicas check-members
