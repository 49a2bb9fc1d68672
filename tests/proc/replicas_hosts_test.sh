#!/bin/sh
# Property: replicas on several hosts use one ftccld; when a rank is killed, a standby on a third
# host takes its role, and all end with one state. Method: network namespaces are the hosts, joined
# by a bridge; examples/replicas runs in them as a scheduler would start it.
# shellcheck disable=SC2086 # lists of words
cd "${top_builddir:-.}" || exit 99
[ -x ./examples/replicas ] || { echo 'SKIP: examples/replicas was not built'; exit 77; }
[ -x ./tools/ftccld ] || { echo 'SKIP: ftccld was not built'; exit 77; }
name=ftm$$
dir=$(mktemp -d) || exit 99
pids=
clean_up() {
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null
    wait
    for i in 1 2 3 hub; do ip netns del $name-$i 2>/dev/null; done
    rm -rf "$dir"
}
trap clean_up EXIT
if ! ip netns add $name-hub 2>/dev/null; then
    echo 'SKIP: network namespaces cannot be made (ip netns)'
    exit 77
fi
set -e
ip -n $name-hub link add bridge type bridge
ip -n $name-hub link set bridge up
for i in 1 2 3; do
    ip netns add $name-$i
    ip -n $name-$i link add eth0 type veth peer name port$i netns $name-hub
    ip -n $name-hub link set port$i master bridge up
    ip -n $name-$i addr add 10.77.0.$i/24 dev eth0
    ip -n $name-$i link set eth0 up
    ip -n $name-$i link set lo up
done
set +e

umask 077
echo 'the key of members on several hosts' >"$dir/key"
FTCCL_SECRET_FILE=$dir/key FTCCL_COORDINATOR=10.77.0.1:4242
export FTCCL_SECRET_FILE FTCCL_COORDINATOR
ip netns exec $name-1 ./tools/ftccld --listen 10.77.0.1:4242 --key-file "$dir/key" \
    >"$dir/ftccld" 2>&1 &
pids="$pids $!"

# start HOST RANK STANDBY: its process is $!
start() {
    RANK=$2 WORLD_SIZE=4 FTCCL_STANDBY=$3 ip netns exec $name-$1 ./examples/replicas -r 2 -s 300 \
        -p 20 -w 100 --host 10.77.0.$1 >"$dir/rank$2" 2>&1 &
    pids="$pids $!"
}
start 1 0 0
start 1 1 0
start 2 2 0
start 2 3 0
victim=$!
start 3 4 1

# until_says PATTERN FILE: within a minute
until_says() {
    for _ in $(seq 600); do
        ! grep -q "$1" "$dir/$2" || return 0
        sleep 0.1
    done
    echo "FAIL: no '$1' in $2"
    tail -n 50 "$dir"/*
    exit 1
}
until_says '2 replicas' rank3
kill -9 $victim
for rank in 0 1 2 4; do until_says '^end ' rank$rank; done

grep -h '^end \|^parameters ' "$dir"/rank[0124] >"$dir/out"
awk '
    $1 == "end" && end[$2 " " $3]++ { print "FAIL: two ranks had role " $2 " " $3; wrong = 1 }
    $1 == "end" { n++ }
    $1 == "parameters" {
        local = $3; $1 = $2 = $3 = ""
        if (!(local in seen)) seen[local] = $0
        if (seen[local] != $0) {
            print "FAIL: parameters of local rank " local " differ"
            wrong = 1
        }
    }
    END { if (n != 4) print "FAIL: " n " ranks came to the end"; exit wrong || n != 4 }' \
    "$dir/out" || { tail -n 50 "$dir"/*; exit 1; }
echo "the standby on the third host: $(grep -h '^end ' "$dir/rank4")"
