if HAVE_GTEST
if HAVE_VERBS
check_PROGRAMS += tests/unit/verbs_test tests/unit/verbs_choice_test
tests_unit_verbs_test_SOURCES = tests/unit/verbs_test.cc tests/unit/verbs_standin.h
tests_unit_verbs_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_verbs_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_verbs_choice_test_SOURCES = tests/unit/verbs_choice_test.cc
tests_unit_verbs_choice_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_verbs_choice_test_LDADD = src/libftcore.la $(gtest_libs)
TESTS += tests/unit/verbs_test tests/unit/verbs_choice_test
endif
endif
