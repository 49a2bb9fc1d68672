# telemetry: file layout, writer, reader
if HAVE_GTEST
check_PROGRAMS += tests/unit/telemetry_test
TESTS += tests/unit/telemetry_test
tests_unit_telemetry_test_SOURCES = tests/unit/telemetry_test.cc \
	tests/unit/telemetry_files_test.cc tests/unit/telemetry_snapshot_test.cc \
	tests/unit/telemetry_look_test.cc tests/unit/telemetry_threads_test.cc \
	tests/unit/telemetry_fixture.h
tests_unit_telemetry_test_CPPFLAGS = $(gtest_cppflags) -DFT_SRCDIR=\"$(abs_top_srcdir)\"
tests_unit_telemetry_test_LDADD = src/libftcore.la $(gtest_libs)
endif
