if HAVE_GTEST
check_LTLIBRARIES += tests/sim/libsim.la
tests_sim_libsim_la_SOURCES = tests/sim/sim.c tests/sim/sim.h
tests_sim_libsim_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests

check_PROGRAMS += tests/sim/sim_test
TESTS += tests/sim/sim_test
tests_sim_sim_test_SOURCES = tests/sim/sim_test.cc tests/sim/validations.h
tests_sim_sim_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_sim_sim_test_LDADD = tests/sim/libsim.la src/libftcore.la $(gtest_libs)

check_PROGRAMS += tests/sim/retry_test
TESTS += tests/sim/retry_test
tests_sim_retry_test_SOURCES = tests/sim/retry_sim_test.cc tests/sim/retry_calls_test.cc \
	tests/sim/retry_sim.h tests/sim/validations.h
tests_sim_retry_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_sim_retry_test_LDADD = tests/sim/libsim.la src/libftcore.la $(gtest_libs)

check_PROGRAMS += tests/sim/agree_test
TESTS += tests/sim/agree_test
tests_sim_agree_test_SOURCES = tests/sim/agree_test.cc tests/sim/agree_links_test.cc \
	tests/sim/agree_checks.h tests/sim/agree_sim_test.cc tests/sim/agree_world.cc \
	tests/sim/agree_world.h tests/sim/agree_referee.cc tests/sim/agree_referee.h
tests_sim_agree_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_sim_agree_test_LDADD = src/libftcore.la $(gtest_libs)
endif
include tests/sim/reshape.frag
