if HAVE_GTEST
if HAVE_DAEMONS
check_PROGRAMS += tests/proc/agent_test
TESTS += tests/proc/agent_test
SLOW_TESTS += tests/proc/agent_test
check_LTLIBRARIES += tests/proc/libnvidia-ml.la
tests_proc_libnvidia_ml_la_SOURCES = tests/proc/nvml_standin.c
tests_proc_libnvidia_ml_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -avoid-version -shrext .so.1
check_LTLIBRARIES += tests/proc/libresolver_standin.la
tests_proc_libresolver_standin_la_SOURCES = tests/proc/resolver_standin.c
tests_proc_libresolver_standin_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -avoid-version -module
tests_proc_libresolver_standin_la_LIBADD = -ldl
tests_proc_agent_test_SOURCES = tests/proc/agent_test.cc tests/proc/daemons.h \
	tests/campaign/net.cc tests/campaign/net.h
tests_proc_agent_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_agent_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/paths_master_test
TESTS += tests/proc/paths_master_test
tests_proc_paths_master_test_SOURCES = tests/proc/paths_master_test.cc tests/proc/daemons.h \
	tests/common/daemon_talk.h
tests_proc_paths_master_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_paths_master_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
if HAVE_STORE
check_PROGRAMS += tests/proc/etcd_test
TESTS += tests/proc/etcd_test
SLOW_TESTS += tests/proc/etcd_test
tests_proc_etcd_test_SOURCES = tests/proc/etcd_test.cc tests/proc/etcd_process.h \
	tests/proc/daemons.h
tests_proc_etcd_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_etcd_test_LDADD = tools/master/libmaster.la tests/proc/libproc.la src/libftcore.la \
	$(gtest_libs)
check_PROGRAMS += tests/proc/members_store_test
TESTS += tests/proc/members_store_test
SLOW_TESTS += tests/proc/members_store_test
tests_proc_members_store_test_SOURCES = tests/proc/members_store_test.cc tests/proc/members.h \
	tests/proc/etcd_process.h tests/proc/daemons.h tests/common/daemon_talk.h
tests_proc_members_store_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_members_store_test_LDADD = tools/master/libmaster.la tests/proc/libproc.la \
	src/libftcore.la $(gtest_libs)
endif
check_PROGRAMS += tests/proc/members_test tests/proc/member_agent_test
TESTS += tests/proc/members_test tests/proc/member_agent_test
SLOW_TESTS += tests/proc/members_test tests/proc/member_agent_test
tests_proc_members_test_SOURCES = tests/proc/members_test.cc tests/proc/members.h \
	tests/proc/daemons.h tests/common/daemon_talk.h
tests_proc_members_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_members_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
tests_proc_member_agent_test_SOURCES = tests/proc/member_agent_test.cc tests/proc/members.h \
	tests/proc/daemons.h tests/common/daemon_talk.h
tests_proc_member_agent_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_member_agent_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
endif
endif
