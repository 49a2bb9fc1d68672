#!/bin/sh
# A short slice of the fault campaign whose hosts are joined by libfabric (FT_CAMPAIGN_SECONDS,
# default 11, and what the last event takes).
program=$top_builddir/tests/campaign/campaign
[ -z "${FT_SANITIZER:-}" ] ||
    { echo "not under sanitizers: what is killed there tells nothing"; exit 77; }
[ -x "$program" ] || { echo "not built"; exit 77; }
grep -q 'FT_HAVE_LIBFABRIC 1' "$top_builddir/config.h" || { echo "without libfabric"; exit 77; }
exec "$program" --over ofi --brief --large 0 --seconds "${FT_CAMPAIGN_SECONDS:-11}"
