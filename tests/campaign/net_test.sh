#!/bin/sh
# A short slice of the fault campaign whose hosts are joined by a plugin of NCCL's interface
# (FT_CAMPAIGN_SECONDS, default 11, and what the last event takes).
program=$top_builddir/tests/campaign/campaign
[ -z "${FT_SANITIZER:-}" ] ||
    { echo "not under sanitizers: what is killed there tells nothing"; exit 77; }
[ -x "$program" ] || { echo "not built"; exit 77; }
exec "$program" --over net --brief --large 0 --seconds "${FT_CAMPAIGN_SECONDS:-11}"
