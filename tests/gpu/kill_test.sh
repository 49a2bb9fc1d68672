#!/bin/sh
# The part "kill" of tests/gpu/run without a GPU: dry_run.sh says how.
part=kill
. "$top_srcdir/tests/gpu/dry_run.sh"
