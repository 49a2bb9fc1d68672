# Tests over RDMA devices, in a virtual machine with soft-RoCE (`make check-rdma`, at most 6
# minutes; PATTERN="verbs_*": only those). It needs no RDMA hardware and no root here, but qemu and
# Debian's kernel, which it fetches. Without them it says so and succeeds.
EXTRA_DIST += tests/rdma/check.sh tests/rdma/rig tests/rdma/unpack_kernel.py \
	tests/rdma/guest/init tests/rdma/guest/start tests/rdma/guest/devices.sh \
	tests/rdma/guest/tests tests/rdma/guest/list.sh tests/rdma/guest/pingpong.sh
rdma_programs =
if HAVE_GTEST
if HAVE_VERBS
rdma_programs += tests/rdma/fabric_test tests/rdma/input_test
tests_rdma_fabric_test_SOURCES = tests/rdma/fabric_test.cc tests/rdma/fabric_fixture.h
tests_rdma_fabric_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_rdma_fabric_test_LDADD = src/libftcore.la $(gtest_libs)
rdma_programs += tests/rdma/ranks_test
tests_rdma_ranks_test_SOURCES = tests/rdma/ranks_test.cc
tests_rdma_ranks_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_rdma_ranks_test_LDADD = $(proc_ldadd)
rdma_conform = tests/conform/transport_data_test tests/conform/transport_fail_test \
	tests/conform/transport_fence_test \
	tests/conform/transport_sleep_test tests/conform/transport_trim_test
tests_rdma_input_test_SOURCES = tests/rdma/input_test.cc tests/rdma/fabric_fixture.h
tests_rdma_input_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_rdma_input_test_LDADD = src/libftcore.la $(gtest_libs)
endif
endif
check_PROGRAMS += $(rdma_programs)
check-rdma: $(rdma_programs) $(rdma_conform) $(campaign_program)
	$(SHELL) $(srcdir)/tests/rdma/check.sh . $(PATTERN)
