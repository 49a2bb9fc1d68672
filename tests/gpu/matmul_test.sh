#!/bin/sh
# The part "matmul" of tests/gpu/run without a GPU: dry_run.sh says how.
part=matmul
. "$top_srcdir/tests/gpu/dry_run.sh"
