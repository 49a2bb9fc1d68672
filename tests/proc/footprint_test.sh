#!/bin/sh
# Property: a communicator of 8 processes takes less than 2 MiB of each for links and records while
# it carries small messages, memory for long ones comes when they do, and goes when they have not
# come for a while. Method: perf/footprint stops at stages, ftccl-info --memory looks at rank 0
# there; once with memory that stays, once with memory that goes, until it has.
cd "${top_builddir:-.}" || exit 99
export FTCCL_TRANSPORTS=shm
# The leaks are those of the plug-ins that hwloc and libfabric load into ftccl-info.
export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
mkfifo "$dir/go" || exit 99
failed=0

# Until the programs stand at a stage.
arrive() {
    until grep -q "^at $stage " "$dir/stages"; do
        kill -0 $! 2>/dev/null ||
            { echo "footprint ended before $stage:"; cat "$dir/errors"; exit 1; }
        sleep 0.05
    done
}

# Sets links and records to what they take, KiB.
look() {
    ./tools/ftccl-info --memory "$(sed -n "s/^at $stage \([0-9]*\).*/\1/p" "$dir/stages")" \
        >"$dir/memory" 2>&1 ||
        { echo "$stage: $(cat "$dir/memory")"; failed=1; }
    links=$(kib links) records=$(kib telemetry)
}

# kib NAME: of the last look
kib() { sed -n "s/^  $1 *\([0-9]*\) .*/\1/p" "$dir/memory"; }

check_stays() {
    arrive
    look
    echo "$stage: links $links KiB, telemetry $records KiB"
    case $stage in
        before) want=0 most=0 ;;
        small) want=1 most=$((2048 - records)) ;;
        large) want=$((last + 64)) most=8192 ;;
        *) want=0 most=8192 ;;
    esac
    [ "$links" -ge $want ] && [ "$links" -le $most ] ||
        { echo "$stage: links take $links KiB, not $want to $most"; failed=1; }
    last=$links
}

# At once where nothing is to go.
check_goes() {
    arrive
    for i in $(seq 100); do
        look
        [ $((links + records)) -le 2048 ] && break
        sleep 0.1
    done
    echo "$stage, at look $i: links $links KiB, telemetry $records KiB"
    [ $((links + records)) -le 2048 ] ||
        { echo "$stage: after a while of idleness links still take $links KiB"; failed=1; }
}

# through CHECK: all stages
through() {
    : >"$dir/stages" # what the last one said is no answer of this one
    timeout -k 5 120 ./perf/footprint -w -n 8 -b 1048576 <"$dir/go" >"$dir/stages" 2>"$dir/errors" &
    exec 3>"$dir/go"
    for stage in before made small large crossed; do
        "$1"
        echo >&3
    done
    wait $! || { echo "footprint: $(cat "$dir/errors")"; failed=1; }
    exec 3>&-
}

export FTCCL_TRIM_MS=0
through check_stays
unset FTCCL_TRIM_MS
through check_goes
exit $failed
