# A suite over MPI, compiled with MPI's own wrapper.
mpi_sources = tests/mpi/mpi_main.c tests/mpi/mpi_coll.c tests/mpi/mpi_types.c
mpi_headers = tests/mpi/mpi_suite.h tests/common/reference.h
TESTS += tests/mpi/mpi_test.sh
SLOW_TESTS += tests/mpi/mpi_test.sh
EXTRA_DIST += tests/mpi/mpi_test.sh $(mpi_sources) $(mpi_headers)
if HAVE_MPI
check_SCRIPTS += tests/mpi/mpi_suite
CLEANFILES += tests/mpi/mpi_suite tests/mpi/.libs/mpi_suite
tests/mpi/mpi_suite: $(mpi_sources) $(mpi_headers) src/libftccl.la
	$(AM_V_CCLD)$(MKDIR_P) tests/mpi && $(LIBTOOL) $(AM_LIBTOOLFLAGS) --silent --tag=CC \
	  --mode=link $(MPICC) -D_DEFAULT_SOURCE -std=gnu11 -g -O2 -Wall -Wextra \
	  -I$(top_srcdir)/include -I$(top_srcdir) -I$(top_srcdir)/tests/mpi $(LDFLAGS) -o $@ \
	  $(addprefix $(top_srcdir)/,$(mpi_sources)) src/libftccl.la -lm
endif
