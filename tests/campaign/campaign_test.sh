#!/bin/sh
# A slice of the fault campaign: as much as fits into FT_CAMPAIGN_SECONDS (default 150).
program=$top_builddir/tests/campaign/campaign
[ -z "${FT_SANITIZER:-}" ] ||
    { echo "not under sanitizers: what is killed there tells nothing"; exit 77; }
[ -x "$program" ] || { echo "not built"; exit 77; }
exec "$program" --seconds "${FT_CAMPAIGN_SECONDS:-150}"
