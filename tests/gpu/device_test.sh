#!/bin/sh
# The part "device" of tests/gpu/run without a GPU: dry_run.sh says how.
part=device
. "$top_srcdir/tests/gpu/dry_run.sh"
