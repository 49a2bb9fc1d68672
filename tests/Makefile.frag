# Tests. Each folder adds programs to check_PROGRAMS and TESTS (scripts: TESTS and EXTRA_DIST, named
# *.sh). A test that takes longer than about ten seconds, or that cannot run under a sanitizer, also
# goes into SLOW_TESTS. What several programs share is a convenience library, so that it is compiled
# once.
# googletest programs take gtest_cppflags and gtest_libs and stand inside `if HAVE_GTEST`.
SLOW_TESTS =
# tests/common/all.h, with googletest and the standard library's headers, is compiled once and goes
# in front of each of them. A program with another -O or -f than the rest reads the header itself:
# gcc looks for all.h.gch first and for all.h after it.
all_h = -Itests/common -I$(top_srcdir)/tests/common -include all.h
gtest_cppflags = $(all_h) $(AM_CPPFLAGS) $(GTEST_CFLAGS)
gtest_libs = $(GTEST_LIBS) -lgtest_main -lpthread
EXTRA_DIST += tests/common/all.h tests/common/sanitizer.h

TEST_EXTENSIONS = .sh
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh
SH_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh
tsan_options = suppressions=$(abs_top_srcdir)/tests/tsan.supp:second_deadlock_stack=1
AM_TESTS_ENVIRONMENT = top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' \
	CC='$(CC)' CXX='$(CXX)' \
	FT_SANITIZER='$(FT_SANITIZER)' FT_TEST_SLOWDOWN='$(FT_TEST_SLOWDOWN)' MPIEXEC='$(MPIEXEC)' \
	NCCL_LIBRARY='$(NCCL_LIBRARY)' \
	ASAN_OPTIONS="$${ASAN_OPTIONS-detect_leaks=1:abort_on_error=0}" \
	LSAN_OPTIONS="$${LSAN_OPTIONS-suppressions=$(abs_top_srcdir)/tests/lsan.supp}" \
	TSAN_OPTIONS="$${TSAN_OPTIONS-$(tsan_options)}"; \
	export top_srcdir top_builddir CC CXX FT_SANITIZER FT_TEST_SLOWDOWN MPIEXEC NCCL_LIBRARY \
	ASAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS;
EXTRA_DIST += tests/limit.sh tests/nightly.sh tests/tsan.supp tests/lsan.supp \
	tests/model/agree.pml tests/model/replay tests/model/replay.pml tests/model/run.sh
CLEANFILES += test-results/*.json test-results/*.count test-results/*.log test-results/*.time

# Tests begin in this order. The first ones wait for most of minutes: if they began late, the others
# would be over long before them.
include tests/campaign/Makefile.frag
include tests/nomem/Makefile.frag
include tests/proc/Makefile.frag
include tests/sim/Makefile.frag
include tests/mpi/Makefile.frag
include tests/cuda/Makefile.frag
include tests/conform/Makefile.frag
include tests/unit/Makefile.frag
include tests/algo/Makefile.frag
include tests/rma/Makefile.frag
include tests/net_plugin/Makefile.frag
include tests/gpu/Makefile.frag
include tests/abi/Makefile.frag
include tests/fuzz/Makefile.frag
include tests/tidy/Makefile.frag
include tests/python/Makefile.frag
include tests/rdma/Makefile.frag
include tests/clos/Makefile.frag
include tests/scale/Makefile.frag

# `make check` runs all tests; these targets compile and run a part:
#   check-fast     without the slow ones
#   check-memory   for AddressSanitizer and UBSan: of these, without what it has nothing to see in;
#                  200 schedules of each simulation
#   check-threads  for ThreadSanitizer: of these, without what has one thread in each process, or
#                  much to compute
#   check-bare     for a build without an optional library: what differs there (the tools), and the
#                  main job
# A new test is in the first three unless it is named here. check-nightly leaves out nothing under
# either sanitizer.
checked_elsewhere = tests/gpu/% tests/tidy/% tests/algo/checker_test tests/unit/perf_% \
	tests/abi/layout_% tests/abi/symbols_test.sh tests/abi/loading_test.sh \
	tests/abi/cupy_test.sh tests/abi/torch_test.sh tests/proc/install_test.sh
not_threads = tests/nomem/% tests/cuda/pass_test tests/sim/% tests/fuzz/% tests/algo/% \
    tests/unit/diagnose_hang_test tests/unit/diagnose_slow_test tests/unit/diagnose_report_test \
    tests/unit/auth_test tests/unit/crc32c_test tests/unit/detect_test tests/unit/fault_test \
	tests/unit/info_test.sh tests/unit/net_test tests/unit/tcp_test \
	tests/unit/tcp_hostile_test tests/unit/tcp_expect_test tests/unit/transport_list_test \
	tests/unit/verify_test tests/conform/device_test tests/conform/shm_hostile_test \
	tests/conform/tcp_silent_test tests/conform/transport_data_test
fast_tests = $(filter-out $(SLOW_TESTS),$(TESTS))
memory_tests = $(nomem_program) $(filter-out $(checked_elsewhere),$(fast_tests))
threads_tests = $(filter-out $(not_threads),$(memory_tests))
bare_tests = $(filter tests/unit/info_test.sh tests/abi/% tests/proc/install_test.sh \
	tests/proc/coll_test tests/proc/kill_test tests/proc/shrink_test \
	tests/proc/diagnose_files_test tests/proc/watch_test \
	tests/proc/elastic_test.sh,$(TESTS))
memory_draws = FT_SIM_RUNS=$${FT_SIM_RUNS:-200}
# What check-memory, check-threads and check-bare build: not the perf programs, of which their tests
# need one.
without_perf = pkglibexec_PROGRAMS= \
    noinst_PROGRAMS="$(filter-out perf/%,$(noinst_PROGRAMS)) perf/footprint" \
	noinst_LTLIBRARIES="$(filter-out perf/%,$(noinst_LTLIBRARIES))"
memory_build = $(without_perf)
threads_build = $(without_perf)
bare_build = $(without_perf)
# A part with all that it needs, without running it: `make build-memory`; scripts/test does that
# while other tests run.
check-fast check-memory check-threads check-bare: check-%: build-%
	$($*_draws) $(MAKE) $(AM_MAKEFLAGS) check $($*_build) TESTS="$($*_tests)" \
		check_PROGRAMS="$(filter $($*_tests),$(check_PROGRAMS))"
build-fast build-memory build-threads build-bare: build-%: config.h
	$(MAKE) $(AM_MAKEFLAGS) all-am $($*_build)
	$(MAKE) $(AM_MAKEFLAGS) check-build $($*_build) \
		check_PROGRAMS="$(filter $($*_tests),$(check_PROGRAMS))"
build-all: config.h
	$(MAKE) $(AM_MAKEFLAGS) all-am
	$(MAKE) $(AM_MAKEFLAGS) check-build
# The precompiled header, before every object of a googletest program; it is all that says that they
# depend on config.h.
if HAVE_PCH
tests/common/all.h.gch: $(top_srcdir)/tests/common/all.h config.h
	$(AM_V_GEN)$(MKDIR_P) tests/common && $(CXX) $(DEFS) $(AM_CPPFLAGS) $(GTEST_CFLAGS) \
		$(CPPFLAGS) $(AM_CXXFLAGS) $(CXXFLAGS) -x c++-header -o $@ \
		$(top_srcdir)/tests/common/all.h
$(foreach program,$(filter-out tests/fuzz/%,$(check_PROGRAMS)), \
    $($(subst /,_,$(program))_OBJECTS)): tests/common/all.h.gch
CLEANFILES += tests/common/all.h.gch
endif
# The test programs without running them.
check-build: $(check_LTLIBRARIES) $(check_PROGRAMS) $(check_SCRIPTS)
# Hours, not minutes: sanitizers over everything, fuzzers for longer, stress tests repeated.
# PARTS="fuzz distcheck": only those; tests/nightly.sh lists them.
check-nightly:
	$(SHELL) $(top_srcdir)/tests/nightly.sh $(abs_top_srcdir) $(PARTS)
# The agreement's model, explored by spin, and the simulation's steps replayed in it: some minutes.
# Passes over it where there is no spin.
if HAVE_GTEST
simulation = tests/sim/agree_test
endif
check-model: $(simulation)
	AGREE_TEST='$(abs_top_builddir)/tests/sim/agree_test' \
		MODEL_BUILD='$(abs_top_builddir)/build-model' \
		$(SHELL) $(top_srcdir)/tests/model/run.sh || [ $$? -eq 77 ]
.PHONY: check-build check-fast check-memory check-threads check-bare build-all build-fast \
    build-memory build-threads build-bare check-nightly check-model check-cause check-diagnose \
    check-quiet check-rdma
