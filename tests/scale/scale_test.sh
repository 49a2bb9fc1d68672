#!/bin/sh
# tests/scale/scale, whose first lines say what it shows, with few members: in replicas of eight and
# of 64; with views that members hold from an earlier coordinator, all connecting at once; on so
# many connections that the coordinator lets heartbeats gather.
program=$top_builddir/tests/scale/scale
[ -x "$program" ] || { echo "not built"; exit 77; }
"$program" --members 256 --local 8,64 --rounds 3 --loads 2 &&
    "$program" --members 64 --local 8 --rounds 2 --held --burst &&
    "$program" --members 1100 --local 2 --slots 2 --rounds 2 --held --spread 20
