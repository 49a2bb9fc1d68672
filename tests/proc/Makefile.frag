include tests/proc/perf.frag
# Suites over the public header: ranks as threads and as processes that are killed.
if HAVE_GTEST
proc_tests = tests/proc/api_errors_test tests/proc/init_errors_test tests/proc/comm_test \
	tests/proc/coll_test tests/proc/group_test tests/proc/mismatch_test tests/proc/kill_test \
	tests/proc/death_test tests/proc/beat_test tests/proc/fork_test tests/proc/shrink_test \
	tests/proc/grow_test tests/proc/reset_test \
	tests/proc/fence_test tests/proc/cause_test tests/proc/part_test \
	tests/proc/concurrent_test
check_PROGRAMS += $(proc_tests)
TESTS += $(proc_tests)
check_LTLIBRARIES += tests/proc/libproc.la
proc_ldadd = tests/proc/libproc.la src/libftccl.la $(gtest_libs)
tests_proc_libproc_la_SOURCES = tests/proc/proc.cc tests/proc/proc.h tests/proc/shm.cc \
	tests/proc/shm.h tests/common/reference.h
tests_proc_libproc_la_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) \
	-DFT_TEST_PLUGIN='"$(abs_top_builddir)/tests/net_plugin/.libs/libnccl-net-ft12.so"'
tests_proc_libproc_la_DEPENDENCIES = tests/net_plugin/libnccl-net-ft12.la
tests_proc_api_errors_test_SOURCES = tests/proc/api_errors_test.cc
tests_proc_api_errors_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_api_errors_test_LDADD = $(proc_ldadd)
tests_proc_init_errors_test_SOURCES = tests/proc/init_errors_test.cc
tests_proc_init_errors_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_init_errors_test_LDADD = $(proc_ldadd)
tests_proc_comm_test_SOURCES = tests/proc/comm_test.cc
tests_proc_comm_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_comm_test_LDADD = $(proc_ldadd)
tests_proc_coll_test_SOURCES = tests/proc/coll_test.cc
tests_proc_coll_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_coll_test_LDADD = $(proc_ldadd)
tests_proc_group_test_SOURCES = tests/proc/group_test.cc
tests_proc_group_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_group_test_LDADD = $(proc_ldadd)
tests_proc_mismatch_test_SOURCES = tests/proc/mismatch_test.cc
tests_proc_mismatch_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_mismatch_test_LDADD = $(proc_ldadd)
tests_proc_kill_test_SOURCES = tests/proc/kill_test.cc
tests_proc_kill_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_kill_test_LDADD = $(proc_ldadd)
tests_proc_death_test_SOURCES = tests/proc/death_test.cc
tests_proc_death_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_death_test_LDADD = $(proc_ldadd)
tests_proc_concurrent_test_SOURCES = tests/proc/concurrent_test.cc
tests_proc_concurrent_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_concurrent_test_LDADD = $(proc_ldadd)
tests_proc_shrink_test_SOURCES = tests/proc/shrink_test.cc
tests_proc_shrink_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_shrink_test_LDADD = $(proc_ldadd)
tests_proc_grow_test_SOURCES = tests/proc/grow_test.cc
tests_proc_grow_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_grow_test_LDADD = $(proc_ldadd)
tests_proc_beat_test_SOURCES = tests/proc/beat_test.cc
tests_proc_beat_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_beat_test_LDADD = $(proc_ldadd)
tests_proc_reset_test_SOURCES = tests/proc/reset_test.cc
tests_proc_reset_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_reset_test_LDADD = $(proc_ldadd)
tests_proc_fence_test_SOURCES = tests/proc/fence_test.cc
tests_proc_fence_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_fence_test_LDADD = $(proc_ldadd)
tests_proc_cause_test_SOURCES = tests/proc/cause_test.cc tests/campaign/net.cc tests/campaign/net.h
tests_proc_cause_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_cause_test_LDADD = $(proc_ldadd)
tests_proc_part_test_SOURCES = tests/proc/part_test.cc tests/campaign/net.cc tests/campaign/net.h
tests_proc_part_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_part_test_LDADD = $(proc_ldadd)
SLOW_TESTS += tests/proc/cause_test tests/proc/part_test
# A thousand faults after which everyone exits at the first error; `make check` has 15 s of it.
check-cause: tests/proc/cause_test
	FT_CAUSE_RUNS=1000 tests/proc/cause_test
tests_proc_fork_test_SOURCES = tests/proc/fork_test.cc
tests_proc_fork_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_fork_test_LDADD = $(proc_ldadd)
endif
TESTS += tests/proc/install_test.sh
EXTRA_DIST += tests/proc/install_test.sh
include tests/proc/small.frag
