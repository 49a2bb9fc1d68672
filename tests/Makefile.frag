# Tests. Each folder adds programs to check_PROGRAMS and TESTS (scripts: TESTS and EXTRA_DIST, named *.sh). A test that takes
# longer than about ten seconds, or that cannot run under a sanitizer, also goes into SLOW_TESTS, which check-fast leaves out.
# googletest programs take gtest_cppflags and gtest_libs and stand inside `if HAVE_GTEST`.
SLOW_TESTS =
gtest_cppflags = $(AM_CPPFLAGS) $(GTEST_CFLAGS)
gtest_libs = $(GTEST_LIBS) -lgtest_main -lpthread

TEST_EXTENSIONS = .sh
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh
SH_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh
AM_TESTS_ENVIRONMENT = top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' CC='$(CC)' CXX='$(CXX)' \
	FT_SANITIZER='$(FT_SANITIZER)' FT_TEST_SLOWDOWN='$(FT_TEST_SLOWDOWN)' MPIEXEC='$(MPIEXEC)' \
	ASAN_OPTIONS="$${ASAN_OPTIONS-detect_leaks=1:abort_on_error=0}" \
	TSAN_OPTIONS="$${TSAN_OPTIONS-suppressions=$(abs_top_srcdir)/tests/tsan.supp:second_deadlock_stack=1}"; \
	export top_srcdir top_builddir CC CXX FT_SANITIZER FT_TEST_SLOWDOWN MPIEXEC ASAN_OPTIONS TSAN_OPTIONS;
EXTRA_DIST += tests/limit.sh tests/nightly.sh tests/tsan.supp tests/model/agree.pml tests/model/replay \
	tests/model/replay.pml tests/model/run.sh
CLEANFILES += test-results/*.json test-results/*.count test-results/*.log

include tests/unit/Makefile.frag
include tests/algo/Makefile.frag
include tests/conform/Makefile.frag
include tests/sim/Makefile.frag
include tests/proc/Makefile.frag
include tests/mpi/Makefile.frag
include tests/fuzz/Makefile.frag
include tests/campaign/Makefile.frag
include tests/tidy/Makefile.frag

# The test programs without running them, so that they can be built in parallel and then run one after another.
check-build: $(check_LTLIBRARIES) $(check_PROGRAMS) $(check_SCRIPTS)
check-fast: all
	$(MAKE) $(AM_MAKEFLAGS) check TESTS="$(filter-out $(SLOW_TESTS),$(TESTS))"
# Hours, not minutes: sanitizers over everything, fuzzers for longer, stress tests repeated.
check-nightly:
	$(SHELL) $(top_srcdir)/tests/nightly.sh $(abs_top_srcdir)
# The agreement's model, explored by spin, and the simulation's steps replayed in it: some minutes. Passes over it where
# there is no spin.
if HAVE_GTEST
simulation = tests/sim/agree_test
endif
check-model: $(simulation)
	AGREE_TEST='$(abs_top_builddir)/tests/sim/agree_test' MODEL_BUILD='$(abs_top_builddir)/build-model' $(SHELL) $(top_srcdir)/tests/model/run.sh || [ $$? -eq 77 ]
.PHONY: check-build check-fast check-nightly check-model
