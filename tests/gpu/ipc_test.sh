#!/bin/sh
# The part "ipc" of tests/gpu/run without a GPU: dry_run.sh says how.
part=ipc
. "$top_srcdir/tests/gpu/dry_run.sh"
