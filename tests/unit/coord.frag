# the coordinator of managed membership, and its formats
if HAVE_GTEST
check_PROGRAMS += tests/unit/coord_test
TESTS += tests/unit/coord_test
tests_unit_coord_test_SOURCES = tests/unit/coord_test.cc tests/unit/coord_players.h
tests_unit_coord_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_coord_test_LDADD = src/libftcore.la $(gtest_libs)

check_PROGRAMS += tests/unit/coord_random_test
TESTS += tests/unit/coord_random_test
tests_unit_coord_random_test_SOURCES = tests/unit/coord_random_test.cc tests/unit/coord_players.h
tests_unit_coord_random_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_coord_random_test_LDADD = src/libftcore.la $(gtest_libs)

check_PROGRAMS += tests/unit/managed_wire_test
TESTS += tests/unit/managed_wire_test
tests_unit_managed_wire_test_SOURCES = tests/unit/managed_wire_test.cc
tests_unit_managed_wire_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_managed_wire_test_LDADD = src/libftcore.la $(gtest_libs)

check_PROGRAMS += tests/unit/coord_scale_test
TESTS += tests/unit/coord_scale_test
tests_unit_coord_scale_test_SOURCES = tests/unit/coord_scale_test.cc
tests_unit_coord_scale_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_coord_scale_test_LDADD = src/libftcore.la $(gtest_libs)
endif
