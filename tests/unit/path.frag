# path: probes and classes of ports
if HAVE_GTEST
check_PROGRAMS += tests/unit/path_test
TESTS += tests/unit/path_test
tests_unit_path_test_SOURCES = tests/unit/path_test.cc tests/unit/path_config.h
tests_unit_path_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_path_test_LDADD = src/libftcore.la $(gtest_libs)

# the allocation of paths to the connections of a cluster
check_PROGRAMS += tests/unit/allocate_test
TESTS += tests/unit/allocate_test
tests_unit_allocate_test_SOURCES = tests/unit/allocate_test.cc
tests_unit_allocate_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_allocate_test_LDADD = src/path/liballocate.la src/libftcore.la $(gtest_libs)

# the topology that follows from them
check_PROGRAMS += tests/unit/topology_test
TESTS += tests/unit/topology_test
tests_unit_topology_test_SOURCES = tests/unit/topology_test.cc
tests_unit_topology_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_topology_test_LDADD = src/path/liballocate.la src/libftcore.la $(gtest_libs)

# a rank and the master of paths
check_PROGRAMS += tests/unit/path_master_test
TESTS += tests/unit/path_master_test
tests_unit_path_master_test_SOURCES = tests/unit/path_master_test.cc tests/common/daemon_talk.h
tests_unit_path_master_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_path_master_test_LDADD = src/libftcore.la $(gtest_libs)
endif
