if HAVE_GTEST
check_PROGRAMS += tests/proc/member_test
TESTS += tests/proc/member_test
SLOW_TESTS += tests/proc/member_test
tests_proc_member_test_SOURCES = tests/proc/member_test.cc
tests_proc_member_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_member_test_LDADD = $(proc_ldadd)
endif
