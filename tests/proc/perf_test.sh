#!/bin/sh
# shellcheck disable=SC2016,SC2086
# The perf programs run, verify and report under every way to start them, find wrong results, and
# end in time when a rank dies. Method: small sizes as threads, in groups, under ftccl-run and
# mpiexec; a preloaded library that breaks an operation; a planned kill. Every run is under a time
# limit.
limit="timeout -k 5 60"
run="$limit ./tools/ftccl-run"
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0
ops="all_reduce all_gather broadcast reduce reduce_scatter alltoall alltoallv gather scatter"
ops="$ops sendrecv hypercube"
small="-b 64 -e 16K -f 16 -n 2 -w 1"

# passes NAME COMMAND...: status 0, the footer says OK, and every line of the table has 13 columns
passes() {
    name=$1
    shift
    if ! "$@" >"$dir/out" 2>"$dir/err"; then
        echo "FAIL $name: status not 0"
    elif ! grep -q '^# Out of bounds values : 0 OK' "$dir/out" ||
        ! grep -q '^# Avg bus bandwidth    : [0-9]' "$dir/out"; then
        echo "FAIL $name: no footer"
    elif ! awk '!/^#/ { n++; if (NF != 13) exit 1 } END { if (!n) exit 1 }' "$dir/out"; then
        echo "FAIL $name: the table is not as expected"
    else
        return 0
    fi
    tail -n 5 "$dir/out" "$dir/err"
    failed=1
}

# fails NAME STATUS TEXT COMMAND...: that status, and TEXT in the output
fails() {
    name=$1 wanted=$2 text=$3
    shift 3
    "$@" >"$dir/out" 2>&1
    status=$?
    [ $status = "$wanted" ] && grep -q "$text" "$dir/out" && return
    echo "FAIL $name: status $status, wanted $wanted, and '$text' in:"
    tail -n 5 "$dir/out"
    failed=1
}

for op in $ops; do
    n=3
    [ $op = hypercube ] && n=4
    passes "$op, threads" $limit ./perf/${op}_perf -t $n $small
    passes "$op, ranks of one thread" $limit ./perf/${op}_perf -g $n $small
    passes "$op, processes" $run -n $n ./perf/${op}_perf $small
    passes "$op, one rank" $limit ./perf/${op}_perf $small
done
passes 'all types and operators' $limit ./perf/all_reduce_perf -t 3 -b 1K -e 1K -n 1 -d all -o all
passes 'all roots and types' $limit ./perf/reduce_perf -t 2 -b 1K -e 1K -n 1 -d all -r all
passes 'threads in processes' $run -n 2 ./perf/reduce_scatter_perf -t 2 $small
passes 'groups in processes, parallel init' $run -n 2 ./perf/all_reduce_perf -g 2 -p 1 $small
passes 'aggregation' $limit ./perf/all_gather_perf -t 2 -m 4 $small
passes 'aggregated steps' $limit ./perf/hypercube_perf -g 4 -m 3 $small
passes 'waiting' $limit ./perf/all_reduce_perf -t 2 -z 1 -a 3 $small
: >"$dir/meet"
passes 'meeting in a file' env FTCCL_PERF_MEET="$dir/meet" \
    $run -n 2 ./perf/all_reduce_perf -t 2 -b 64 -e 64 -z 1 -n 20 -w 1
[ "$(od -An -tu4 -j64 -N4 "$dir/meet")" -eq 80 ] || {
    echo "FAIL meeting in a file: not the 2 processes 20 times out of place and 20 in place"
    failed=1
}
fails 'meeting in no file' 1 'FTCCL_PERF_MEET=/nowhere/at/all: No such file' \
    env FTCCL_PERF_MEET=/nowhere/at/all $run -n 2 ./perf/all_reduce_perf $small
passes 'null stream, unaligned, registered' $limit ./perf/alltoall_perf -t 2 -y 1 -u 3 -R 1 $small
passes 'no verification' $limit ./perf/all_reduce_perf -t 2 -c 0 $small
passes 'several cycles' $limit ./perf/all_reduce_perf -t 2 -N 2 -C 1 $small
passes 'fixed steps' $limit ./perf/all_reduce_perf -t 2 -b 1K -e 4K -i 1K -n 2
[ "$(grep -vc '^#' "$dir/out")" = 4 ] || { echo 'FAIL fixed steps: not four sizes'; failed=1; }
$limit ./perf/all_reduce_perf -t 2 -I 1 -K 1 -S 1 -J "$dir/out.json" $small >"$dir/out" ||
    { echo 'FAIL per iteration'; failed=1; }
if command -v python3 >/dev/null 2>&1; then
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert len(d["results"]) == 3 and d["out_of_bounds"]["okay"] is True, d
assert len(d["results"][0]["in_place_per_iter"]["times_us"]) == 2, d' "$dir/out.json" ||
        { echo 'FAIL JSON'; failed=1; }
fi

for mpiexec in mpiexec.mpich 'mpirun.openmpi --allow-run-as-root --oversubscribe'; do
    command -v ${mpiexec%% *} >/dev/null 2>&1 || continue
    passes "${mpiexec%% *}" $limit $mpiexec -n 3 ./perf/all_reduce_perf $small
    passes "${mpiexec%% *}, shell between" $limit $mpiexec -n 2 sh -c "./perf/broadcast_perf $small"
done
if command -v python3 >/dev/null 2>&1; then
    # python3 holds the port while the ranks run: nobody else gets it, and a listener with
    # SO_REUSEADDR may bind it too
    passes 'address and secret' python3 -c 'import socket, subprocess, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", 0))
address = "FTCCL_COMM_ID=127.0.0.1:%d" % s.getsockname()[1]
words = [address if word == "ADDRESS" else word for word in sys.argv[1:]]
sys.exit(subprocess.run(words).returncode)' \
        $run -n 2 env -u FTCCL_UNIQUE_ID ADDRESS FTCCL_SECRET=0123456789abcdef0123 \
        ./perf/all_reduce_perf $small
fi

wrong=$PWD/tests/proc/.libs/wrong_result.so
if [ -f "$wrong" ] && [ -z "$FT_SANITIZER" ]; then
    fails 'a missing element is found' 1 'Out of bounds values : 2 FAILED' \
        env LD_PRELOAD="$wrong" $limit ./perf/all_reduce_perf -t 2 -b 64 -e 64 -n 1
    fails 'a missing element is found by processes' 1 'Out of bounds values : 2 FAILED' \
        env LD_PRELOAD="$wrong" $run -n 2 ./perf/all_reduce_perf -b 64 -e 64 -n 1
    fails 'a damaged send buffer is found' 1 'FAILED' \
        env LD_PRELOAD="$wrong" $limit ./perf/all_gather_perf -t 2 -b 64 -e 64 -n 1
fi

# Each rank has two connections to the other: one line each, and together all bytes.
env FTCCL_TRANSPORTS=tcp FTCCL_TCP_CONNECTIONS=2 $run -n 2 \
    ./perf/all_reduce_perf -b 1M -e 1M -n 8 -w 0 -c 0 -P 1 -J "$dir/out.json" >"$dir/out"
for rank in 0 1; do
    awk -v from="$rank" '$1 == "#" && $2 == "rank" && $3 == from && $4 == "to" {
            lines++
            for (i = 5; i <= NF; i++) if ($i == "bytes,") bytes += $(i - 1)
        }
        END { exit !(lines == 2 && bytes >= 16 * 1024 * 1024) }' "$dir/out" || {
        echo "FAIL connections of rank $rank:"
        cat "$dir/out"
        failed=1
    }
done
[ "$(grep -o 'rank [01] to rank [01]: ' "$dir/out.json" | wc -l)" = 4 ] || {
    echo "FAIL connections in JSON"
    failed=1
}

fails 'a killed rank is seen by the others' 1 '^rank [02]: ' \
    env FTCCL_INIT_TIMEOUT_MS=20000 $run -n 3 --kill 1@0.7 \
    ./perf/all_reduce_perf -b 1K -e 1K -n 100000000 -c 0
grep -q '^$' "$dir/out" && {
    echo "FAIL a killed rank is seen by the others: empty lines in:"
    cat "$dir/out"
    failed=1
}
# The error of the rank that writes the table ends a line that it has begun.
grep -qE '^ +[0-9].*rank 0: ' "$dir/out" && {
    echo "FAIL a killed rank is seen by the others: the error shares a line in:"
    cat "$dir/out"
    failed=1
}
fails 'a stopped rank runs into the deadline of -T' 1 '^rank [02]: .*timed out' \
    env FTCCL_INIT_TIMEOUT_MS=20000 $run -n 3 --stop 1@0.5 \
    ./perf/all_reduce_perf -b 1K -e 1K -n 100000000 -c 0 -T 2
fails 'several machines without an address' 1 'several machines' \
    env RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=1 $limit ./perf/all_reduce_perf $small
fails 'bandwidth demanded' 1 'FAILED' \
    env NCCL_TESTS_MIN_BW=1000000 $limit ./perf/all_reduce_perf -t 2 $small
fails 'odd hypercube' 2 'power of two' $limit ./perf/hypercube_perf -t 3 $small
fails 'no such root' 2 'no root 2' $limit ./perf/broadcast_perf -t 2 -r 2 $small
[ ! -w /dev/full ] || fails 'disk full' 1 'cannot write the table' \
    sh -c './perf/all_reduce_perf -b 64 -e 64 -n 1 -t 2 2>&1 >/dev/full'
fails 'unknown option' 2 'unrecognized option' $limit ./perf/all_reduce_perf --nothing
fails 'graphs' 3 'needs a GPU' $limit ./perf/all_reduce_perf -G 1
fails 'half a job' 1 'name no rank' env PMI_RANK=3 PMI_SIZE=2 $limit ./perf/all_reduce_perf $small
fails 'help' 0 'stepfactor' $limit ./perf/all_reduce_perf --help
exit $failed
