#!/bin/sh
# Property: a slice of `make check-clos`: routes and faults of the leaf-spine network are what they
# should be, and ranks reduce over it, also when one dies. Method: tests/clos/check.py.
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
[ -z "${FT_SANITIZER:-}" ] || { echo "SKIP: not under sanitizers"; exit 77; }
exec python3 "$top_srcdir/tests/clos/check.py" "$top_builddir" \
    predicts same_spine black_hole_drops signal hosts_reduce killed
