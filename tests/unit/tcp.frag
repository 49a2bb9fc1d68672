if HAVE_GTEST
check_PROGRAMS += tests/unit/auth_test tests/unit/tcp_test tests/unit/tcp_hostile_test \
	tests/unit/tcp_expect_test tests/unit/tcp_remake_test tests/unit/tcp_paths_test \
	tests/unit/tcp_spread_test tests/unit/tcp_short_test tests/unit/fault_test
tests_unit_auth_test_SOURCES = tests/unit/auth_test.cc
tests_unit_auth_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_auth_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_test_SOURCES = tests/unit/tcp_test.cc tests/unit/tcp_fixture.h
tests_unit_tcp_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_hostile_test_SOURCES = tests/unit/tcp_hostile_test.cc tests/unit/tcp_fixture.h
tests_unit_tcp_hostile_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_hostile_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_expect_test_SOURCES = tests/unit/tcp_expect_test.cc tests/unit/tcp_fixture.h
tests_unit_tcp_expect_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_expect_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_remake_test_SOURCES = tests/unit/tcp_remake_test.cc tests/unit/tcp_relay.h \
	tests/unit/tcp_fixture.h
tests_unit_tcp_remake_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_remake_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_spread_test_SOURCES = tests/unit/tcp_spread_test.cc tests/unit/tcp_relay.h \
	tests/unit/tcp_finder.h tests/unit/tcp_fixture.h
tests_unit_tcp_spread_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_spread_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_short_test_SOURCES = tests/unit/tcp_short_test.cc tests/unit/tcp_fixture.h
tests_unit_tcp_short_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_short_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_tcp_paths_test_SOURCES = tests/unit/tcp_paths_test.cc tests/unit/tcp_finder.h \
	tests/unit/tcp_fixture.h
tests_unit_tcp_paths_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_tcp_paths_test_LDADD = src/libftcore.la $(gtest_libs)
tests_unit_fault_test_SOURCES = tests/unit/fault_test.cc
tests_unit_fault_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_fault_test_LDADD = src/libftcore.la $(gtest_libs)
TESTS += tests/unit/auth_test tests/unit/tcp_test tests/unit/tcp_hostile_test \
	tests/unit/tcp_expect_test tests/unit/tcp_remake_test tests/unit/tcp_paths_test \
	tests/unit/tcp_spread_test tests/unit/tcp_short_test tests/unit/fault_test
endif
