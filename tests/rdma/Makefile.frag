# Tests over RDMA devices, in a virtual machine with soft-RoCE (`make check-rdma`, at most 6
# minutes; PATTERN="verbs_*": only those). It needs no RDMA hardware and no root here, but qemu and
# Debian's kernel, which it fetches. Without them it says so and succeeds.
EXTRA_DIST += tests/rdma/check.sh tests/rdma/rig tests/rdma/unpack_kernel.py \
	tests/rdma/guest/init tests/rdma/guest/start tests/rdma/guest/devices.sh \
	tests/rdma/guest/tests tests/rdma/guest/list.sh tests/rdma/guest/pingpong.sh
rdma_programs =
check-rdma: $(rdma_programs)
	$(SHELL) $(srcdir)/tests/rdma/check.sh . $(PATTERN)
