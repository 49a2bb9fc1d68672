# One command for a machine with a GPU, tests/gpu/run; here each of its parts runs on the stand-in
# driver.
gpu_parts = building.py checks.py ddp.py ddp_rank.py ipc.py matmul_loop.py rig.py speed.py
gpu_dry_runs = tests/gpu/build_test.sh tests/gpu/device_test.sh tests/gpu/collectives_test.sh \
	tests/gpu/kill_test.sh tests/gpu/ipc_test.sh tests/gpu/bandwidth_test.sh \
	tests/gpu/nccl_test.sh tests/gpu/matmul_test.sh tests/gpu/ddp_test.sh
EXTRA_DIST += tests/gpu/run tests/gpu/dry_run.sh tests/gpu/rig_test.sh tests/gpu/rig_test.py \
	$(gpu_parts:%=tests/gpu/parts/%) $(gpu_dry_runs)
TESTS += tests/gpu/rig_test.sh
if HAVE_CUDA
if HAVE_GTEST
TESTS += $(gpu_dry_runs)
endif
endif
