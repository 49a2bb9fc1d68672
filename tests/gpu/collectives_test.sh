#!/bin/sh
# The part "collectives" of tests/gpu/run without a GPU: dry_run.sh says how.
part=collectives
. "$top_srcdir/tests/gpu/dry_run.sh"
