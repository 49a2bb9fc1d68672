# tests/conform
if HAVE_GTEST
check_LTLIBRARIES += tests/conform/libtransport.la
tests_conform_libtransport_la_SOURCES = tests/conform/transport.h tests/conform/transport.cc
tests_conform_libtransport_la_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) \
	-DFT_TEST_PLUGIN='"$(abs_top_builddir)/tests/net_plugin/.libs/libnccl-net-ft12.so"'
tests_conform_libtransport_la_DEPENDENCIES = tests/net_plugin/libnccl-net-ft12.la
tests_conform_libtransport_la_CXXFLAGS = $(AM_CXXFLAGS) -O2
conform_ldadd = tests/conform/libtransport.la src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/conform/transport_data_test
tests_conform_transport_data_test_SOURCES = tests/conform/transport_data_test.cc
tests_conform_transport_data_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_data_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_data_test

check_PROGRAMS += tests/conform/transport_short_test
tests_conform_transport_short_test_SOURCES = tests/conform/transport_short_test.cc
tests_conform_transport_short_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_short_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_short_test

check_PROGRAMS += tests/conform/transport_fail_test
tests_conform_transport_fail_test_SOURCES = tests/conform/transport_fail_test.cc
tests_conform_transport_fail_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_fail_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_fail_test

check_PROGRAMS += tests/conform/transport_fence_test
tests_conform_transport_fence_test_SOURCES = tests/conform/transport_fence_test.cc
tests_conform_transport_fence_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_fence_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_fence_test

check_PROGRAMS += tests/conform/transport_loan_test
tests_conform_transport_loan_test_SOURCES = tests/conform/transport_loan_test.cc
tests_conform_transport_loan_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_loan_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_loan_test

check_PROGRAMS += tests/conform/transport_pinned_test
tests_conform_transport_pinned_test_SOURCES = tests/conform/transport_pinned_test.cc
tests_conform_transport_pinned_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_pinned_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_pinned_test

check_PROGRAMS += tests/conform/transport_pull_test
tests_conform_transport_pull_test_SOURCES = tests/conform/transport_pull_test.cc
tests_conform_transport_pull_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_pull_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_pull_test

check_PROGRAMS += tests/conform/transport_trim_test
tests_conform_transport_trim_test_SOURCES = tests/conform/transport_trim_test.cc
tests_conform_transport_trim_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_trim_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_trim_test

check_PROGRAMS += tests/conform/transport_sleep_test
tests_conform_transport_sleep_test_SOURCES = tests/conform/transport_sleep_test.cc
tests_conform_transport_sleep_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_sleep_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/transport_sleep_test

check_PROGRAMS += tests/conform/tcp_silent_test
tests_conform_tcp_silent_test_SOURCES = tests/conform/tcp_silent_test.cc
tests_conform_tcp_silent_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_tcp_silent_test_LDADD = $(conform_ldadd)
TESTS += tests/conform/tcp_silent_test

check_PROGRAMS += tests/conform/transport_speed
tests_conform_transport_speed_SOURCES = tests/conform/transport_speed.cc
tests_conform_transport_speed_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_conform_transport_speed_LDADD = tests/conform/libtransport.la src/libftcore.la $(GTEST_LIBS) \
	-lpthread

check_PROGRAMS += tests/conform/device_test
TESTS += tests/conform/device_test
tests_conform_device_test_SOURCES = tests/conform/device_test.cc tests/conform/device_cases.h \
	tests/conform/device_ref.h
tests_conform_device_test_CXXFLAGS = $(AM_CXXFLAGS) $(GTEST_CFLAGS) -O1 -ffp-contract=off
tests_conform_device_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lpthread
endif

check_PROGRAMS += tests/conform/shm_hostile_test
tests_conform_shm_hostile_test_SOURCES = tests/conform/shm_hostile_test.c
tests_conform_shm_hostile_test_LDADD = src/libftcore.la -lpthread
TESTS += tests/conform/shm_hostile_test
# Not a test: prints what a link costs over a bare socket.
check_PROGRAMS += tests/conform/link_bench
tests_conform_link_bench_SOURCES = tests/conform/link_bench.c
tests_conform_link_bench_LDADD = src/libftcore.la

TESTS += tests/conform/transport_fault_test.sh
SLOW_TESTS += tests/conform/transport_fault_test.sh
EXTRA_DIST += tests/conform/transport_fault_test.sh
