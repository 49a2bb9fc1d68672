# Rounding must not depend on whether the compiler fuses a multiplication with an addition:
# contraction is off.
noinst_LTLIBRARIES += src/libftdevice.la
src_libftdevice_la_SOURCES = src/device/device.h src/device/registry.c src/device/foreign.c \
	src/device/cuda/open.h src/device/host/host.h src/device/host/minifloat.h \
	src/device/host/fpenv.h src/device/host/host.c src/device/host/scalar.c \
	src/device/host/vector.h src/device/host/avx512.c src/device/host/avx2.c \
	src/device/host/sse2.c src/device/host/neon.c \
	src/device/host/check.c
src_libftdevice_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off
src_libftcore_la_LIBADD += src/libftdevice.la

# The GPU's kernels: machine code for the architectures of --with-cuda-arch and PTX of the last one,
# embedded as they are.
cuda_sources = src/device/cuda/cuda.h src/device/cuda/driver.h src/device/cuda/command.h \
	src/device/cuda/cuda.c src/device/cuda/driver.c src/device/cuda/queue.c \
	src/device/cuda/deferred_free.c src/device/cuda/graph.c src/device/cuda/word.c \
	src/device/cuda/share.c src/device/cuda/image.c
kernel_sources = src/device/cuda/kernel.cu src/device/cuda/pass.h src/device/cuda/numbers.h \
	src/device/cuda/command.h
EXTRA_DIST += $(kernel_sources) $(cuda_sources)
if HAVE_CUDA
noinst_LTLIBRARIES += src/libftcuda.la
src_libftcuda_la_SOURCES = $(cuda_sources)
src_libftcuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
src_libftcore_la_LIBADD += src/libftcuda.la
src/device/cuda/kernel.fatbin: $(kernel_sources)
	$(AM_V_GEN)$(MKDIR_P) src/device/cuda && $(NVCC) $(NVCC_FLAGS) -fatbin -o $@ \
		$(top_srcdir)/src/device/cuda/kernel.cu
$(src_libftcuda_la_OBJECTS): src/device/cuda/kernel.fatbin
CLEANFILES += src/device/cuda/kernel.fatbin
endif
