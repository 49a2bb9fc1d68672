# descriptors that the library owns
if HAVE_GTEST
check_PROGRAMS += tests/unit/fds_test
TESTS += tests/unit/fds_test
tests_unit_fds_test_SOURCES = tests/unit/fds_test.cc
tests_unit_fds_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_fds_test_LDFLAGS = -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
tests_unit_fds_test_LDADD = src/libftcore.la $(gtest_libs)
endif
