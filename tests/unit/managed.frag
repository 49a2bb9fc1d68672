if HAVE_GTEST
managed_tests = tests/unit/client_test tests/unit/coord_port_test tests/unit/coord_process_test
check_PROGRAMS += $(managed_tests)
TESTS += $(managed_tests)
managed_cppflags = $(gtest_cppflags) -I$(top_srcdir)
managed_ldadd = src/libftcore.la $(GTEST_LIBS) -lgtest_main -lpthread
tests_unit_client_test_SOURCES = tests/unit/client_test.cc tests/unit/managed_helpers.h \
	tests/unit/managed_fake.h
tests_unit_client_test_CPPFLAGS = $(managed_cppflags)
tests_unit_client_test_LDADD = $(managed_ldadd)
tests_unit_coord_port_test_SOURCES = tests/unit/coord_port_test.cc tests/unit/managed_helpers.h
tests_unit_coord_port_test_CPPFLAGS = $(managed_cppflags)
tests_unit_coord_port_test_LDADD = $(managed_ldadd)
tests_unit_coord_process_test_SOURCES = tests/unit/coord_process_test.cc \
	tests/unit/managed_helpers.h tests/unit/managed_fake.h
tests_unit_coord_process_test_CPPFLAGS = $(managed_cppflags)
tests_unit_coord_process_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lpthread
endif
