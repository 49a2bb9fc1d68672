# what the library writes for programs
if HAVE_GTEST
check_PROGRAMS += tests/unit/json_test
TESTS += tests/unit/json_test
tests_unit_json_test_SOURCES = tests/unit/json_test.cc
tests_unit_json_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_json_test_LDADD = src/libftcore.la $(gtest_libs)
check_PROGRAMS += tests/unit/ras_report_test
TESTS += tests/unit/ras_report_test
tests_unit_ras_report_test_SOURCES = tests/unit/ras_report_test.cc tests/unit/ras_scale_test.cc \
	tests/unit/ras_fetch_test.cc
tests_unit_ras_report_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_unit_ras_report_test_LDFLAGS = -Wl,--wrap=ft_host_id
tests_unit_ras_report_test_LDADD = src/libftcore.la $(gtest_libs)
endif
