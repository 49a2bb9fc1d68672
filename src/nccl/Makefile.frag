# libnccl.so.2, in a folder of its own so that it takes NVIDIA's place only where somebody says so.
# One file with that very name, which finds libftccl beside itself or in the folder above. The
# library is given as a file: libtool would add folders of the build. Its own names are its own
# (-Bsymbolic): a process may have NVIDIA's library too.
ncclincludedir = $(includedir)/ftccl
ncclinclude_HEADERS = include/ftccl/nccl.h
nccllibdir = $(libdir)/ftccl
nccllib_LTLIBRARIES = src/libnccl.la
src_libnccl_la_SOURCES = src/nccl/calls.c src/nccl/device.c src/nccl/versions.c src/nccl/shim.h
src_libnccl_la_LDFLAGS = $(AM_LDFLAGS) -avoid-version -shrext .so.2 \
	-Wl,--version-script=$(top_srcdir)/src/nccl/nccl.map \
	-Wl,--no-as-needed,src/.libs/libftccl.so -Wl,-Bsymbolic -Wl,--enable-new-dtags \
	'-Wl,-rpath,$$ORIGIN:$$ORIGIN/..'
src_libnccl_la_DEPENDENCIES = src/libftccl.la $(top_srcdir)/src/nccl/nccl.map
EXTRA_DIST += src/nccl/nccl.map
