if HAVE_GTEST
check_PROGRAMS += tests/proc/validate_test tests/proc/validate_ends_test
TESTS += tests/proc/validate_test tests/proc/validate_ends_test
SLOW_TESTS += tests/proc/validate_test tests/proc/validate_ends_test
validate_sources = tests/proc/validate_job.h tests/proc/validate_job.cc tests/proc/hogs.h \
	tests/campaign/net.cc tests/campaign/net.h
tests_proc_validate_test_SOURCES = tests/proc/validate_test.cc $(validate_sources)
tests_proc_validate_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_validate_test_LDADD = $(proc_ldadd)
tests_proc_validate_ends_test_SOURCES = tests/proc/validate_ends_test.cc $(validate_sources)
tests_proc_validate_ends_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_validate_ends_test_LDADD = $(proc_ldadd)
endif
