# FTCCL beside MPICH, Open MPI and Gloo. `make compare` installs what of them is missing (Debian),
# then measures; COMPARE holds further options. perf/compare builds the other libraries' programs
# itself, below perf/peers.
measuring = cases.py machine.py plot.py programs.py results.py rules.py streams.py table.py \
	torch_rank.py
EXTRA_DIST += perf/compare perf/compare_torch perf/turns $(measuring:%=perf/measuring/%) \
	perf/peer.h perf/peer.c perf/mpi_perf.c perf/gloo_perf.cc perf/limits.c
compare: all
	. $(top_srcdir)/scripts/packages.sh && need $$compare_packages
	$(top_srcdir)/perf/compare --build . $(COMPARE)
clean-local:
	rm -rf perf/peers
.PHONY: compare
