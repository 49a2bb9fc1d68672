# The library. All of it first goes into a convenience library, so that tests and tools can reach
# internal functions; the public one exports what src/ftccl.map lists.
include_HEADERS = include/ftccl.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = ftccl.pc
cmakedir = $(libdir)/cmake/ftccl
cmake_DATA = ftccl-config.cmake ftccl-config-version.cmake
EXTRA_DIST += src/ftccl.map src/ftccl-config.cmake.in
CLEANFILES += ftccl-config.cmake
# Made here and not by configure, so that the folder is a path and no variable of the shell.
ftccl-config.cmake: src/ftccl-config.cmake.in Makefile
	$(AM_V_GEN)sed 's|[@]includedir[@]|$(includedir)|' $(srcdir)/src/ftccl-config.cmake.in >$@

noinst_LTLIBRARIES += src/libftcore.la
src_libftcore_la_SOURCES =
src_libftcore_la_LIBADD = $(SODIUM_LIBS)

include src/base/Makefile.frag
include src/algo/Makefile.frag
include src/device/Makefile.frag
include src/transport/Makefile.frag
include src/membership/Makefile.frag
include src/path/Makefile.frag
include src/telemetry/Makefile.frag
include src/diagnose/Makefile.frag
include src/ras/Makefile.frag
include src/core/Makefile.frag
include src/api/Makefile.frag

lib_LTLIBRARIES = src/libftccl.la
src_libftccl_la_SOURCES =
src_libftccl_la_LIBADD = src/libftcore.la
src_libftccl_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 \
	-Wl,--version-script=$(top_srcdir)/src/ftccl.map
src_libftccl_la_DEPENDENCIES = src/libftcore.la $(top_srcdir)/src/ftccl.map
include src/nccl/Makefile.frag
