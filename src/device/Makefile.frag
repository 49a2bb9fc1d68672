# Rounding must not depend on whether the compiler fuses a multiplication with an addition: contraction is off.
noinst_LTLIBRARIES += src/libftdevice.la
src_libftdevice_la_SOURCES = src/device/device.h src/device/registry.c src/device/foreign.c \
	src/device/host/host.h src/device/host/minifloat.h src/device/host/fpenv.h src/device/host/host.c src/device/host/scalar.c \
	src/device/host/vector.h src/device/host/avx512.c src/device/host/avx2.c src/device/host/sse2.c \
	src/device/host/neon.c
src_libftdevice_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off
src_libftcore_la_LIBADD += src/libftdevice.la
