#!/bin/sh
# The part "ddp" of tests/gpu/run without a GPU: dry_run.sh says how.
part=ddp
. "$top_srcdir/tests/gpu/dry_run.sh"
