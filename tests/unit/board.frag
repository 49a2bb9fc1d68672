# what engines say of their operations to those that have met their pinned memory
if HAVE_GTEST
check_PROGRAMS += tests/unit/board_test
TESTS += tests/unit/board_test
tests_unit_board_test_SOURCES = tests/unit/board_test.cc
tests_unit_board_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_board_test_LDADD = src/libftcore.la $(gtest_libs)
endif
