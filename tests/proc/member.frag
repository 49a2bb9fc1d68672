if HAVE_GTEST
check_PROGRAMS += tests/proc/member_test
TESTS += tests/proc/member_test
SLOW_TESTS += tests/proc/member_test
tests_proc_member_test_SOURCES = tests/proc/member_test.cc
tests_proc_member_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_member_test_LDADD = $(proc_ldadd)
check_PROGRAMS += tests/proc/unopened_test
TESTS += tests/proc/unopened_test
tests_proc_unopened_test_SOURCES = tests/proc/unopened_test.cc
tests_proc_unopened_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_unopened_test_LDFLAGS = -Wl,--wrap=ft_init_open
tests_proc_unopened_test_LDADD = src/libftcore.la $(gtest_libs)
endif
