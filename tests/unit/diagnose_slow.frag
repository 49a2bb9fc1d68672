# when a job is slow, and who makes it slow
if HAVE_GTEST
check_PROGRAMS += tests/unit/diagnose_slow_test
TESTS += tests/unit/diagnose_slow_test
tests_unit_diagnose_slow_test_SOURCES = tests/unit/diagnose_slow_test.cc \
	tests/unit/diagnose_track_test.cc tests/unit/diagnose_who_test.cc \
	tests/unit/diagnose_slow_job_test.cc tests/unit/diagnose_tested_test.cc \
	tests/unit/diagnose_slow.h
tests_unit_diagnose_slow_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_diagnose_slow_test_LDADD = src/libftcore.la $(gtest_libs)
endif
