#!/bin/sh
# The part "bandwidth" of tests/gpu/run without a GPU: dry_run.sh says how.
part=bandwidth
. "$top_srcdir/tests/gpu/dry_run.sh"
