# the protocol of shared slots
if HAVE_GTEST
check_PROGRAMS += tests/unit/slots_test
TESTS += tests/unit/slots_test
tests_unit_slots_test_SOURCES = tests/unit/slots_test.cc tests/unit/slots_race.c \
	tests/unit/slots_race.h
tests_unit_slots_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_slots_test_LDADD = src/libftcore.la $(gtest_libs)
endif
