if HAVE_GTEST
check_PROGRAMS += tests/sim/reshape_sim_test
TESTS += tests/sim/reshape_sim_test
tests_sim_reshape_sim_test_SOURCES = tests/sim/reshape_sim_test.cc tests/sim/reshape_world.h \
	tests/sim/child_agree.h
tests_sim_reshape_sim_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_sim_reshape_sim_test_LDADD = tests/sim/libsim.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/sim/grow_sim_test
TESTS += tests/sim/grow_sim_test
tests_sim_grow_sim_test_SOURCES = tests/sim/grow_sim_test.cc tests/sim/reshape_world.h \
	tests/sim/child_agree.h
tests_sim_grow_sim_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)/tests
tests_sim_grow_sim_test_LDADD = tests/sim/libsim.la src/libftcore.la $(gtest_libs)
endif
