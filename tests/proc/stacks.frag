# ftccl-diagnose --stacks: real processes, real and false tools.
if HAVE_GTEST
check_PROGRAMS += tests/proc/diagnose_stacks_test
TESTS += tests/proc/diagnose_stacks_test
SLOW_TESTS += tests/proc/diagnose_stacks_test
tests_proc_diagnose_stacks_test_SOURCES = tests/proc/diagnose_stacks_test.cc
tests_proc_diagnose_stacks_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_diagnose_stacks_test_LDADD = $(proc_ldadd)
endif
