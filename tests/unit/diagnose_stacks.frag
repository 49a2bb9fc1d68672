# who is elsewhere than most, from stacks
if HAVE_GTEST
check_PROGRAMS += tests/unit/diagnose_stacks_test
TESTS += tests/unit/diagnose_stacks_test
tests_unit_diagnose_stacks_test_SOURCES = tests/unit/diagnose_stacks_test.cc \
	tests/unit/diagnose_builder.h
tests_unit_diagnose_stacks_test_CPPFLAGS = $(gtest_cppflags) $(JANSSON_CFLAGS) -I$(top_srcdir)
tests_unit_diagnose_stacks_test_LDADD = tools/libdiagnose_files.la src/libftcore.la \
	$(JANSSON_LIBS) $(gtest_libs) -lm
endif
