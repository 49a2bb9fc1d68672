# from a snapshot of a job to a verdict
if HAVE_GTEST
check_PROGRAMS += tests/unit/diagnose_hang_test
TESTS += tests/unit/diagnose_hang_test
tests_unit_diagnose_hang_test_SOURCES = tests/unit/diagnose_hang_test.cc \
	tests/unit/diagnose_failures_test.cc \
	tests/unit/diagnose_scale_test.cc tests/unit/diagnose_builder.h
tests_unit_diagnose_hang_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_diagnose_hang_test_LDADD = src/libftcore.la $(gtest_libs)
endif
