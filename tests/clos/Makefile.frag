# Tests in a leaf-spine network of namespaces: `make check-clos` runs all (PATTERN=hole: those with
# "hole" in their names), `make check` a slice. It takes Python, iproute2, Linux 6.11 and root or
# a kernel that gives users namespaces; where one is missing it says so and succeeds.
clos_tests = tests/clos/slice_test.sh
TESTS += $(clos_tests)
SLOW_TESTS += $(clos_tests)
EXTRA_DIST += $(clos_tests) tests/clos/check.py tests/clos/fabric.py tests/clos/inside.py \
	tests/clos/ranks.py tests/clos/master.py tests/clos/rig_test.py tests/clos/ranks_test.py \
	tests/clos/paths_test.py tests/clos/master_test.py
clos_programs = tests/clos/rank
check_PROGRAMS += $(clos_programs)
tests_clos_rank_SOURCES = tests/clos/rank.c
tests_clos_rank_LDADD = src/libftccl.la
check_LTLIBRARIES += tests/clos/libports.la
tests_clos_libports_la_SOURCES = tests/clos/ports.c
tests_clos_libports_la_LDFLAGS = $(AM_LDFLAGS) -rpath /nowhere -avoid-version -module
tests_clos_libports_la_LIBADD = -ldl
check-clos: $(clos_programs)
	python3 $(srcdir)/tests/clos/check.py . $(PATTERN) || [ $$? -eq 77 ]
.PHONY: check-clos
