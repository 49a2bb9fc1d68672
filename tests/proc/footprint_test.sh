#!/bin/sh
# Property: a communicator of 8 processes takes less than 2 MiB of each for links and records while it carries small messages, and
# memory for long ones comes when they do. Method: perf/footprint stops at stages, ftccl-info --memory looks at rank 0 there.
cd "${top_builddir:-.}" || exit 99
export FTCCL_TRANSPORTS=shm
export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" # of the plug-ins that hwloc and libfabric load into ftccl-info
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
mkfifo "$dir/go" || exit 99
timeout -k 5 120 ./perf/footprint -w -n 8 -b 1048576 <"$dir/go" >"$dir/stages" 2>"$dir/errors" &
exec 3>"$dir/go"
failed=0

# kib NAME: of the stage's last look
kib() { sed -n "s/^  $1 *\([0-9]*\) .*/\1/p" "$dir/memory"; }

for stage in before made small large crossed; do
    until grep -q "^at $stage " "$dir/stages"; do
        kill -0 $! 2>/dev/null || { echo "footprint ended before $stage:"; cat "$dir/errors"; exit 1; }
        sleep 0.05
    done
    ./tools/ftccl-info --memory "$(sed -n "s/^at $stage \([0-9]*\).*/\1/p" "$dir/stages")" >"$dir/memory" 2>&1 ||
        { echo "$stage: $(cat "$dir/memory")"; failed=1; }
    links=$(kib links) records=$(kib telemetry)
    echo "$stage: links $links KiB, telemetry $records KiB"
    case $stage in
        before) want=0 most=0 ;;
        small) want=1 most=$((2048 - records)) ;;
        large) want=$((last + 64)) most=8192 ;;
        *) want=0 most=8192 ;;
    esac
    [ "$links" -ge $want ] && [ "$links" -le $most ] || { echo "$stage: links take $links KiB, not $want to $most"; failed=1; }
    last=$links
    echo >&3
done
wait $! || { echo "footprint: $(cat "$dir/errors")"; failed=1; }
exit $failed
