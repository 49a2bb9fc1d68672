# The CUDA device without a GPU: libcuda.so.1 is the stand-in, which programs that are linked to it
# have loaded before the device looks for it. The twin of the kernel is compiled as the host's
# kernels are: no contraction, no flushing.
EXTRA_DIST += tests/cuda/standin.cc tests/cuda/standin.h tests/cuda/standin_graph.cc \
	tests/cuda/standin_graph.h tests/cuda/real.cc tests/cuda/blind.cc tests/cuda/more.cc \
	tests/cuda/ranks.h tests/cuda/graph_test.cc tests/cuda/pass_test.cc \
	tests/cuda/queue_test.cc tests/cuda/gpu_test.cc tests/cuda/blocking_test.cc \
	tests/cuda/processes_test.cc tests/cuda/links_test.cc tests/cuda/runtime.cc
EXTRA_DIST += tests/cuda/standin_peer.cc tests/cuda/standin_peer.h tests/cuda/standin_fault.cc \
	tests/cuda/devmem_test.cc
if HAVE_CUDA
if HAVE_GTEST
cuda_cppflags = $(gtest_cppflags) $(CUDA_CPPFLAGS) -I$(top_srcdir)
check_LTLIBRARIES += tests/cuda/libcuda.la
tests_cuda_libcuda_la_SOURCES = tests/cuda/more.cc tests/cuda/standin.cc \
	tests/cuda/standin_graph.cc tests/cuda/standin_graph.h tests/cuda/standin.h
tests_cuda_libcuda_la_SOURCES += tests/cuda/standin_peer.cc tests/cuda/standin_peer.h \
	tests/cuda/standin_fault.cc
# more.cc puts its own in front of that launch.
tests_cuda_libcuda_la_CPPFLAGS = -I$(top_srcdir)/src $(CUDA_CPPFLAGS) \
	-DcuLaunchKernel=standin_launch_kernel
$(tests_cuda_libcuda_la_OBJECTS): $(top_srcdir)/tests/cuda/Makefile.frag # that flag
tests_cuda_libcuda_la_CXXFLAGS = $(AM_CXXFLAGS) -O1 -ffp-contract=off -Wno-unknown-pragmas
tests_cuda_libcuda_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -avoid-version -shrext .so.1
# On a GPU (tests/gpu/run) the real driver and this stand in front of it.
check_LTLIBRARIES += tests/cuda/libreal.la
tests_cuda_libreal_la_SOURCES = tests/cuda/real.cc
tests_cuda_libreal_la_CPPFLAGS = $(CUDA_CPPFLAGS)
tests_cuda_libreal_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -module -avoid-version
check_LTLIBRARIES += tests/cuda/libblind.la
tests_cuda_libblind_la_SOURCES = tests/cuda/blind.cc
tests_cuda_libblind_la_CPPFLAGS = $(CUDA_CPPFLAGS)
tests_cuda_libblind_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -module -avoid-version
tests_cuda_libblind_la_LIBADD = tests/cuda/libcuda.la
cuda_ldadd = src/libftcore.la tests/cuda/libcuda.la $(gtest_libs)
check_PROGRAMS += tests/cuda/pass_test
TESTS += tests/cuda/pass_test
tests_cuda_pass_test_SOURCES = tests/cuda/pass_test.cc
tests_cuda_pass_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_pass_test_CXXFLAGS = $(AM_CXXFLAGS) -O1 -ffp-contract=off
tests_cuda_pass_test_LDADD = $(cuda_ldadd)
check_PROGRAMS += tests/cuda/queue_test
TESTS += tests/cuda/queue_test
check_PROGRAMS += tests/cuda/gpu_test
TESTS += tests/cuda/gpu_test
tests_cuda_gpu_test_SOURCES = tests/cuda/gpu_test.cc
tests_cuda_gpu_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_gpu_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/blocking_test
TESTS += tests/cuda/blocking_test
tests_cuda_blocking_test_SOURCES = tests/cuda/blocking_test.cc
tests_cuda_blocking_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_blocking_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/processes_test
TESTS += tests/cuda/processes_test
tests_cuda_processes_test_SOURCES = tests/cuda/processes_test.cc
tests_cuda_processes_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_processes_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/spin_test
TESTS += tests/cuda/spin_test
tests_cuda_spin_test_SOURCES = tests/cuda/spin_test.cc
tests_cuda_spin_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_spin_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/links_test
TESTS += tests/cuda/links_test
tests_cuda_links_test_SOURCES = tests/cuda/links_test.cc
tests_cuda_links_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_links_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/devmem_test
TESTS += tests/cuda/devmem_test
tests_cuda_devmem_test_SOURCES = tests/cuda/devmem_test.cc
tests_cuda_devmem_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_devmem_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
check_PROGRAMS += tests/cuda/graph_test
TESTS += tests/cuda/graph_test
tests_cuda_graph_test_SOURCES = tests/cuda/graph_test.cc
tests_cuda_graph_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_graph_test_LDADD = tests/proc/libproc.la src/libftccl.la tests/cuda/libcuda.la \
	$(gtest_libs)
tests_cuda_queue_test_SOURCES = tests/cuda/queue_test.cc
tests_cuda_queue_test_CPPFLAGS = $(cuda_cppflags)
tests_cuda_queue_test_LDADD = $(cuda_ldadd)
# The runtime's stand-in. No compiler of CUDA's is needed: the program has no kernels.
check_LTLIBRARIES += tests/cuda/libcudart.la
tests_cuda_libcudart_la_SOURCES = tests/cuda/runtime.cc
tests_cuda_libcudart_la_CPPFLAGS = $(CUDA_CPPFLAGS)
tests_cuda_libcudart_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -avoid-version
tests_cuda_libcudart_la_LIBADD = tests/cuda/libcuda.la
cuda_program_ldadd = tests/cuda/libcudart.la tests/cuda/libcuda.la
endif
endif
# Says what is missing where it cannot run.
if HAVE_GTEST
check_PROGRAMS += tests/cuda/program_test
TESTS += tests/cuda/program_test
tests_cuda_program_test_SOURCES = tests/cuda/program_test.cc tests/abi/nccl_header.h
tests_cuda_program_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) $(CUDA_CPPFLAGS)
tests_cuda_program_test_LDADD = tests/proc/libproc.la src/libnccl.la src/libftccl.la \
	$(cuda_program_ldadd) $(gtest_libs)
endif
