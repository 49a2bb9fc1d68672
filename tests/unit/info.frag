# ftccl-info; NCCL's values and layouts
TESTS += tests/unit/info_test.sh
EXTRA_DIST += tests/unit/info_test.sh
check_PROGRAMS += tests/unit/nccl_abi_test
TESTS += tests/unit/nccl_abi_test
tests_unit_nccl_abi_test_SOURCES = tests/unit/nccl_abi_test.c
tests_unit_nccl_abi_test_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
