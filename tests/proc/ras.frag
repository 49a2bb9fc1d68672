if HAVE_GTEST
check_PROGRAMS += tests/proc/ras_test
TESTS += tests/proc/ras_test
SLOW_TESTS += tests/proc/ras_test
tests_proc_ras_test_SOURCES = tests/proc/ras_test.cc
tests_proc_ras_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) $(JANSSON_CFLAGS)
tests_proc_ras_test_LDADD = $(proc_ldadd) $(JANSSON_LIBS)
check_PROGRAMS += tests/proc/ras_hosts_test
TESTS += tests/proc/ras_hosts_test
SLOW_TESTS += tests/proc/ras_hosts_test
tests_proc_ras_hosts_test_SOURCES = tests/proc/ras_hosts_test.cc tests/proc/hogs.h
tests_proc_ras_hosts_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) $(JANSSON_CFLAGS)
tests_proc_ras_hosts_test_LDADD = $(proc_ldadd) $(JANSSON_LIBS)
endif
