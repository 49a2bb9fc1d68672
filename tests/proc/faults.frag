# The fault campaign of ftccl-diagnose: `make check` runs it for a minute or so, and
# `make check-diagnose` in full.
if HAVE_GTEST
check_PROGRAMS += tests/proc/diagnose_faults_test
TESTS += tests/proc/diagnose_faults_test
SLOW_TESTS += tests/proc/diagnose_faults_test
tests_proc_diagnose_faults_test_SOURCES = tests/proc/diagnose_faults_test.cc \
	tests/proc/diagnose_kinds.cc tests/proc/diagnose_processors.cc \
	tests/proc/diagnose_worker.cc tests/proc/diagnose_faults.h \
	tests/campaign/net.cc tests/campaign/net.h tests/campaign/relay.cc tests/campaign/relay.h
tests_proc_diagnose_faults_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_proc_diagnose_faults_test_CXXFLAGS = $(AM_CXXFLAGS) $(JANSSON_CFLAGS)
tests_proc_diagnose_faults_test_LDADD = $(proc_ldadd) $(JANSSON_LIBS)
FT_DIAGNOSE_EVENTS = 1500
if HAVE_CUDA
faults_standin = tests/cuda/libcuda.la
endif
check-diagnose: tests/proc/diagnose_faults_test tools/ftccl-diagnose $(faults_standin)
	FT_DIAGNOSE_EVENTS=$(FT_DIAGNOSE_EVENTS) tests/proc/diagnose_faults_test
endif
