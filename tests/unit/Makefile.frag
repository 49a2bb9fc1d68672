# tests/unit
if HAVE_GTEST
check_PROGRAMS += tests/unit/net_test
tests_unit_net_test_SOURCES = tests/unit/net_test.cc
tests_unit_net_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_net_test_LDADD = src/libftcore.la $(GTEST_LIBS) -lgtest_main
TESTS += tests/unit/net_test
endif
include tests/unit/telemetry.frag
include tests/unit/bootstrap.frag
include tests/unit/tcp.frag
include tests/unit/path.frag
include tests/unit/side.frag
include tests/unit/info.frag
include tests/unit/perf.frag
include tests/unit/transport_list.frag
include tests/unit/liveness.frag
include tests/unit/fds.frag
include tests/unit/slots.frag
include tests/unit/shmem.frag
include tests/unit/quick_clock.frag
include tests/unit/readiness.frag
include tests/unit/verify.frag
include tests/unit/detect.frag
include tests/unit/managed.frag
include tests/unit/coord.frag
include tests/unit/params.frag
include tests/unit/json.frag
include tests/unit/diagnose_hang.frag
include tests/unit/diagnose_slow.frag
include tests/unit/diagnose_report.frag
include tests/unit/master.frag
include tests/unit/diagnose_stacks.frag
include tests/unit/verbs.frag
