# Not tests: jobs side by side, and faults, in the leaf-spine network of tests/clos.
EXTRA_DIST += perf/clos perf/clos_faults
