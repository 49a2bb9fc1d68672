include tests/proc/faults.frag
include tests/proc/stacks.frag
include tests/proc/validate.frag
if HAVE_GTEST
check_PROGRAMS += tests/proc/grow_kill_test
TESTS += tests/proc/grow_kill_test
SLOW_TESTS += tests/proc/grow_kill_test
tests_proc_grow_kill_test_SOURCES = tests/proc/grow_kill_test.cc
tests_proc_grow_kill_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_grow_kill_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/pull_test tests/proc/expect_test
TESTS += tests/proc/pull_test tests/proc/expect_test
SLOW_TESTS += tests/proc/pull_test tests/proc/expect_test
tests_proc_pull_test_SOURCES = tests/proc/pull_test.cc
tests_proc_pull_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_pull_test_LDADD = $(proc_ldadd)
tests_proc_expect_test_SOURCES = tests/proc/expect_test.cc
tests_proc_expect_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_expect_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/watch_test
TESTS += tests/proc/watch_test
SLOW_TESTS += tests/proc/watch_test
tests_proc_watch_test_SOURCES = tests/proc/watch_test.cc
tests_proc_watch_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_watch_test_LDADD = $(proc_ldadd)
check-quiet: tests/proc/watch_test tools/ftccl-diagnose
	FT_WATCH_SECONDS=$${FT_WATCH_SECONDS:-7200} tests/proc/watch_test \
		--gtest_filter=Watch.AHealthyJobGivesNoAlarm
check_PROGRAMS += tests/proc/paths_test
TESTS += tests/proc/paths_test
tests_proc_paths_test_SOURCES = tests/proc/paths_test.cc tests/proc/ecmp.h
tests_proc_paths_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_paths_test_LDADD = src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/hosts_test
TESTS += tests/proc/hosts_test
SLOW_TESTS += tests/proc/hosts_test
tests_proc_hosts_test_SOURCES = tests/proc/hosts_test.cc tests/campaign/net.cc tests/campaign/net.h
tests_proc_hosts_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_hosts_test_LDADD = $(proc_ldadd)
if HAVE_LIBFABRIC
check_PROGRAMS += tests/proc/ofi_test
TESTS += tests/proc/ofi_test
tests_proc_ofi_test_SOURCES = tests/proc/ofi_test.cc
tests_proc_ofi_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_ofi_test_LDADD = $(proc_ldadd)
endif
check_PROGRAMS += tests/proc/abort_test
TESTS += tests/proc/abort_test
SLOW_TESTS += tests/proc/abort_test
tests_proc_abort_test_SOURCES = tests/proc/abort_test.cc
tests_proc_abort_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_abort_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/short_test
TESTS += tests/proc/short_test
SLOW_TESTS += tests/proc/short_test
tests_proc_short_test_SOURCES = tests/proc/short_test.cc
tests_proc_short_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_short_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/rma_test
TESTS += tests/proc/rma_test
tests_proc_rma_test_SOURCES = tests/proc/rma_test.cc
tests_proc_rma_test_CPPFLAGS = $(gtest_cppflags)
tests_proc_rma_test_LDADD = src/libftccl.la $(gtest_libs)
check_PROGRAMS += tests/proc/abandoned_test
TESTS += tests/proc/abandoned_test
tests_proc_abandoned_test_SOURCES = tests/proc/abandoned_test.cc
tests_proc_abandoned_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_abandoned_test_LDFLAGS = -Wl,--wrap=ft_comm_open -Wl,--wrap=ft_engine_bind
tests_proc_abandoned_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/few_threads_test
TESTS += tests/proc/few_threads_test
tests_proc_few_threads_test_SOURCES = tests/proc/few_threads_test.cc
tests_proc_few_threads_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_few_threads_test_LDFLAGS = -Wl,--wrap=pthread_create
tests_proc_few_threads_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/repeat_test
TESTS += tests/proc/repeat_test
tests_proc_repeat_test_SOURCES = tests/proc/repeat_test.cc
tests_proc_repeat_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_repeat_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/between_test
TESTS += tests/proc/between_test
tests_proc_between_test_SOURCES = tests/proc/between_test.cc
tests_proc_between_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_between_test_LDFLAGS = -Wl,--wrap=ft_growth_open
tests_proc_between_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/locality_test
TESTS += tests/proc/locality_test
tests_proc_locality_test_SOURCES = tests/proc/locality_test.cc
tests_proc_locality_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_locality_test_LDFLAGS = -Wl,--wrap=ft_tuning_links -Wl,--wrap=getpid
tests_proc_locality_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/fabric_test
TESTS += tests/proc/fabric_test
tests_proc_fabric_test_SOURCES = tests/proc/fabric_test.cc tests/common/fabric.h
tests_proc_fabric_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_fabric_test_LDFLAGS = -Wl,--wrap=ft_transport_list -Wl,--wrap=ft_tuning_links
tests_proc_fabric_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/cores_test
TESTS += tests/proc/cores_test
tests_proc_cores_test_SOURCES = tests/proc/cores_test.cc
tests_proc_cores_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_cores_test_LDFLAGS = -Wl,--wrap=sched_getaffinity -Wl,--wrap=ft_abandoned_check
tests_proc_cores_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/proc/wait_test
TESTS += tests/proc/wait_test
tests_proc_wait_test_SOURCES = tests/proc/wait_test.cc
tests_proc_wait_test_CPPFLAGS = $(gtest_cppflags)
tests_proc_wait_test_LDADD = src/libftccl.la $(gtest_libs)
check_PROGRAMS += tests/proc/preserve_test
TESTS += tests/proc/preserve_test
tests_proc_preserve_test_SOURCES = tests/proc/preserve_test.cc
tests_proc_preserve_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_preserve_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/retry_test
TESTS += tests/proc/retry_test
tests_proc_retry_test_SOURCES = tests/proc/retry_test.cc
tests_proc_retry_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_retry_test_LDADD = $(proc_ldadd)

check_PROGRAMS += tests/proc/retry_calls_test
TESTS += tests/proc/retry_calls_test
tests_proc_retry_calls_test_SOURCES = tests/proc/retry_calls_test.cc
tests_proc_retry_calls_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_retry_calls_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/verify_test
TESTS += tests/proc/verify_test
tests_proc_verify_test_SOURCES = tests/proc/verify_test.cc
tests_proc_verify_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_verify_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/top_test
TESTS += tests/proc/top_test
tests_proc_top_test_SOURCES = tests/proc/top_test.cc
tests_proc_top_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_top_test_LDADD = $(proc_ldadd) -lutil
check_PROGRAMS += tests/proc/diagnose_test
TESTS += tests/proc/diagnose_test
SLOW_TESTS += tests/proc/diagnose_test
tests_proc_diagnose_test_SOURCES = tests/proc/diagnose_test.cc
tests_proc_diagnose_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_diagnose_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/diagnose_files_test
TESTS += tests/proc/diagnose_files_test
SLOW_TESTS += tests/proc/diagnose_files_test
tests_proc_diagnose_files_test_SOURCES = tests/proc/diagnose_files_test.cc
tests_proc_diagnose_files_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_diagnose_files_test_LDADD = $(proc_ldadd)
EXTRA_DIST += tests/proc/daemon_page.py tests/proc/paths_page.py tests/proc/inspector.py \
	tests/proc/members_page.py tests/proc/page.py tests/proc/trace.py
endif
include tests/proc/member.frag
include tests/proc/ras.frag
include tests/proc/agent.frag
