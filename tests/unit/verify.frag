if HAVE_GTEST
check_PROGRAMS += tests/unit/crc32c_test tests/unit/verify_test
tests_unit_crc32c_test_SOURCES = tests/unit/crc32c_test.cc
tests_unit_crc32c_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_crc32c_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lgtest_main
tests_unit_verify_test_SOURCES = tests/unit/verify_test.cc
tests_unit_verify_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_verify_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lgtest_main
TESTS += tests/unit/crc32c_test tests/unit/verify_test
endif
