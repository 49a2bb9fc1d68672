#!/bin/sh
# The part "nccl" of tests/gpu/run without a GPU: dry_run.sh says how.
part=nccl
. "$top_srcdir/tests/gpu/dry_run.sh"
