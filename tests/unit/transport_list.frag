if HAVE_GTEST
check_PROGRAMS += tests/unit/transport_list_test
tests_unit_transport_list_test_SOURCES = tests/unit/transport_list_test.cc
tests_unit_transport_list_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_transport_list_test_LDADD = src/libftcore.la $(gtest_libs)
TESTS += tests/unit/transport_list_test
endif
