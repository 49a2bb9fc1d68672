#!/bin/sh
# The part "build" of tests/gpu/run without a GPU: dry_run.sh says how.
part=build
. "$top_srcdir/tests/gpu/dry_run.sh"
