# libnccl.so.2: names, layouts, behaviour, ways of loading. What is compiled against a nccl.h is
# compiled against NVIDIA's and ours.
own_nccl_cppflags = -I$(top_srcdir) -DFT_OWN_NCCL_H
check_PROGRAMS += tests/abi/layout_test tests/abi/layout_own_test
TESTS += tests/abi/layout_test tests/abi/layout_own_test tests/abi/symbols_test.sh \
	tests/abi/loading_test.sh tests/abi/cupy_test.sh tests/abi/torch_test.sh
tests_abi_layout_test_SOURCES = tests/abi/layout_test.c tests/abi/nccl_header.h
tests_abi_layout_test_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) $(CUDA_CPPFLAGS)
tests_abi_layout_own_test_SOURCES = tests/abi/layout_test.c tests/abi/nccl_header.h
tests_abi_layout_own_test_CPPFLAGS = $(AM_CPPFLAGS) $(own_nccl_cppflags)
if HAVE_GTEST
abi_tests = tests/abi/program_test tests/abi/program_own_test tests/abi/caller_test \
	tests/abi/gpu_pointer_test tests/abi/attach_test
check_PROGRAMS += $(abi_tests)
TESTS += $(abi_tests)
abi_ldadd = tests/proc/libproc.la src/libnccl.la src/libftccl.la $(gtest_libs)
tests_abi_program_test_SOURCES = tests/abi/program_test.cc tests/abi/nccl_header.h
tests_abi_program_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) $(CUDA_CPPFLAGS)
tests_abi_program_test_LDADD = $(abi_ldadd)
tests_abi_program_own_test_SOURCES = tests/abi/program_test.cc tests/abi/nccl_header.h
tests_abi_program_own_test_CPPFLAGS = $(gtest_cppflags) $(own_nccl_cppflags)
tests_abi_program_own_test_LDADD = $(abi_ldadd)
tests_abi_caller_test_SOURCES = tests/abi/caller_test.cc tests/abi/nccl_header.h
tests_abi_caller_test_CPPFLAGS = $(gtest_cppflags) $(own_nccl_cppflags)
tests_abi_caller_test_LDADD = $(abi_ldadd)
tests_abi_gpu_pointer_test_SOURCES = tests/abi/gpu_pointer_test.cc tests/abi/nccl_header.h
tests_abi_gpu_pointer_test_CPPFLAGS = $(gtest_cppflags) $(own_nccl_cppflags)
tests_abi_gpu_pointer_test_LDADD = $(abi_ldadd)
tests_abi_attach_test_SOURCES = tests/abi/attach_test.cc
tests_abi_attach_test_CPPFLAGS = $(gtest_cppflags)
tests_abi_attach_test_LDADD = src/libftcore.la $(gtest_libs)
# A shared library although it is not installed, hence the path.
check_LTLIBRARIES += tests/abi/libcuda.la
tests_abi_libcuda_la_SOURCES = tests/abi/standin_cuda.c
tests_abi_libcuda_la_LDFLAGS = $(AM_LDFLAGS) -avoid-version -shrext .so.1 -rpath /nowhere
endif
EXTRA_DIST += tests/abi/symbols.txt tests/abi/symbols_test.sh tests/abi/loading_test.sh \
	tests/abi/cupy_test.sh tests/abi/torch_test.sh tests/abi/loading.c tests/abi/wheel.c
