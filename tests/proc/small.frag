if HAVE_GTEST
check_PROGRAMS += tests/proc/rma_test
TESTS += tests/proc/rma_test
tests_proc_rma_test_SOURCES = tests/proc/rma_test.cc
tests_proc_rma_test_CPPFLAGS = $(gtest_cppflags)
tests_proc_rma_test_LDADD = src/libftccl.la $(gtest_libs)
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

check_PROGRAMS += tests/proc/verify_test
TESTS += tests/proc/verify_test
tests_proc_verify_test_SOURCES = tests/proc/verify_test.cc
tests_proc_verify_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_verify_test_LDADD = $(proc_ldadd)
endif
