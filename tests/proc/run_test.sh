#!/bin/sh
# shellcheck disable=SC2016
# ftccl-run keeps its promises about environment, whole lines, statuses, planned kills and stops,
# restarts, signals and leftovers. Method: plain shell programs as ranks; readiness comes over
# fifos, every run is under a time limit.
run="timeout -k 5 30 ${FTCCL_RUN:-./tools/ftccl-run}"
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

# expect NAME GOT WANTED
expect() {
    [ "$2" = "$3" ] && return
    printf 'FAIL %s: got "%s", wanted "%s"\n' "$1" "$2" "$3"
    failed=1
}

# gone PID: true once the process has ended; bounded by 10 s
gone() { timeout 10 tail -s 0.05 -f --pid="$1" /dev/null; }

got=$($run -n 3 sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $FTCCL_RESTART \
    ${#FTCCL_UNIQUE_ID}' | sort | tr '\n' ';')
expect environment "$got" '0/3 0/3 0 256;1/3 1/3 0 256;2/3 2/3 0 256;'

got=$($run -n 2 sh -c 'echo $FTCCL_RUN_START' | sort -u | grep -cE '^[0-9]{9,}$')
expect 'one start for all ranks' "$got" 1

got=$($run -n 2 sh -c 'echo $FTCCL_UNIQUE_ID' | sort -u | wc -l)
expect 'one id for all ranks' "$got" 1

got=$(RANK=9 MASTER_ADDR=there MASTER_PORT=7 $run -n 1 \
    sh -c 'echo $RANK $MASTER_ADDR $MASTER_PORT; env | grep -c ^RANK=' | tr '\n' ' ')
expect 'inherited environment' "$got" '0 there 7 1 '

got=$($run -n 4 -l sh -c 'i=0
    while [ $i -lt 500 ]; do printf a; printf "b\n"; i=$((i+1)); done
    printf end' | sort | uniq -c | tr -s ' \n' ' ')
expect 'whole lines' "$got" \
    ' 500 [0] ab 1 [0] end 500 [1] ab 1 [1] end 500 [2] ab 1 [2] end 500 [3] ab 1 [3] end '

got=$($run -n 1 -l sh -c 'echo out; echo err >&2' 2>"$dir/err")
expect 'stdout labelled' "$got" '[0] out'
expect 'stderr labelled' "$(cat "$dir/err")" '[0] err'

$run -n 3 sh -c '[ $RANK != 1 ] || exit 5'
expect 'status of a rank' $? 5
$run -n 2 sh -c '[ $RANK = 0 ] || kill -USR1 $$' 2>"$dir/err"
expect 'status of a signal' $? 138
expect 'signal named' "$(cut -d'(' -f1 "$dir/err")" 'ftccl-run: rank 1 was ended by signal 10 '
$run -n 1 "$dir/nothing" 2>/dev/null
expect 'missing program' $? 127

mkfifo "$dir/fifo"
$run -n 3 --kill 1@0.1 --stop 2@0 sh -c '[ $RANK = 0 ] && exec cat '"$dir/fifo"'
    [ $RANK = 2 ] && exec sleep 1000
    exec >'"$dir/fifo"'
    sleep 1000' 2>"$dir/err"
expect 'killed and stopped ranks do not count' $? 0
expect 'kills and stops are told' "$(sed 's/ [0-9.]* s:/ T:/' "$dir/err" | sort | tr '\n' ';')" \
    'ftccl-run: T: rank 1 killed;ftccl-run: T: rank 2 stopped;'

got=$($run -n 2 --kill 0@0.1 --restart \
    sh -c 'echo $RANK $FTCCL_RESTART; [ $RANK$FTCCL_RESTART != 00 ] || sleep 1000' 2>/dev/null |
    sort | tr '\n' ';')
expect restart "$got" '0 0;0 1;1 0;'
got=$($run -n 1 --restart sh -c 'echo $FTCCL_RESTART; kill -9 $$' 2>/dev/null | wc -l)
expect 'restarts are bounded' "$got" 11

$run -n 1 sh -c 'sleep 1000 & echo $!' >"$dir/pid"
expect 'leftover killed' "$(gone "$(cat "$dir/pid")"; echo $?)" 0

mkfifo "$dir/ready"
exec 3<>"$dir/ready"
# A signal goes to all ranks; they may end as they like.
run_bg="${FTCCL_RUN:-./tools/ftccl-run}"
$run_bg -n 2 sh -c 'trap "exit 7" TERM; echo r >'"$dir/ready"'
    while :; do sleep 1000 & wait; done' &
pid=$!
read -r _ <&3; read -r _ <&3; kill -TERM $pid
gone $pid || kill -9 $pid
wait $pid
expect 'forwarded signal' $? 7

# Two signals end ranks that ignore the first.
$run_bg -n 1 sh -c 'trap "" TERM; echo r >'"$dir/ready"'
    while :; do sleep 1000; done' 2>/dev/null &
pid=$!
read -r _ <&3
kill -TERM $pid; kill -INT $pid
gone $pid || kill -9 $pid
wait $pid
expect 'second signal kills' $? 137

# Ranks do not outlive ftccl-run.
$run_bg -n 1 sh -c 'echo $$ >'"$dir/ready"'; exec sleep 1000' &
pid=$!
read -r child <&3
kill -KILL $pid
wait $pid 2>/dev/null
expect 'ranks die with ftccl-run' "$(gone "$child"; echo $?)" 0

# Managed membership: one coordinator with a secret of its own, unless they are given; standbys are
# there as long as the ranks need them, and what is started again is one of them.
got=$($run -n 2 --standby 1 sh -c 'echo "$FTCCL_COORDINATOR ${#FTCCL_SECRET}"' | sort -u |
    sed 's/:[1-9][0-9]* /:PORT /')
expect 'coordinator' "$got" '127.0.0.1:PORT 64'
got=$(for i in 1 2; do $run -n 1 sh -c 'echo "$FTCCL_SECRET"'; done | sort -u | wc -l)
expect 'a secret for each job' "$got" 2
got=$(FTCCL_COORDINATOR=there:7 FTCCL_SECRET=0123456789abcdef $run -n 2 \
    sh -c 'echo $FTCCL_COORDINATOR $FTCCL_SECRET ${FTCCL_STANDBY-unset}' | sort -u)
expect 'coordinator given' "$got" 'there:7 0123456789abcdef unset'
got=$(FTCCL_SECRET=0123456789abcdef $run -n 1 sh -c 'echo $FTCCL_COORDINATOR $FTCCL_SECRET' |
    sed 's/:[1-9][0-9]* /:PORT /')
expect 'secret given' "$got" '127.0.0.1:PORT 0123456789abcdef'
got=$(FTCCL_SECRET=short $run -n 1 sh -c 'echo ${FTCCL_COORDINATOR-none}' 2>&1)
expect 'secret too short' "$got" 'ftccl-run: no coordinator for managed membership: the '\
'secret has 5 characters, it needs at least 16
none'
FTCCL_COMM_ID=127.0.0.1:9 $run -n 1 true 2>"$dir/err"
expect 'an address without a secret' "$? $(grep -c 'anybody could join' "$dir/err")" '2 2'
got=$($run -n 2 --standby 2 sh -c 'echo $RANK/$WORLD_SIZE $FTCCL_STANDBY >>'"$dir"'/places
    [ $FTCCL_STANDBY = 1 ] || until [ $(wc -l <'"$dir"'/places) = 4 ]; do sleep 0.01; done
    [ $FTCCL_STANDBY = 0 ] || exec sleep 1000'; echo $?; sort "$dir/places")
expect 'standbys' "$(echo "$got" | tr '\n' ';')" '0;0/2 0;1/2 0;2/2 1;3/2 1;'
$run -n 2 --standby 1 sh -c '[ $RANK != 0 ] || kill -9 $$
    until grep -q ended '"$dir/err"'; do sleep 0.01; done' 2>"$dir/err"
expect 'a standby in place of a rank' "$? $(cut -d'(' -f1 "$dir/err")" \
    '0 ftccl-run: rank 0 was ended by signal 9 '
got=$($run -n 1 --standby 1 --restart sh -c 'echo $RANK $FTCCL_STANDBY $FTCCL_RESTART
    [ $FTCCL_STANDBY = 1 ] || kill -9 $$
    [ $RANK = 0 ] || exec sleep 1000' | grep ^0 | sort | tr '\n' ';')
expect 'started again as a standby' "$got" '0 0 0;0 1 1;'
$run -n 2 --standby 1 sh -c '[ $RANK != 0 ] || exit 4; [ $RANK != 2 ] || exit 5'
got=$?
[ $got = 4 ] || [ $got = 5 ] || expect 'nobody in place of a rank' $got '4 or 5'

# What nobody reads, or what does not fit the disk.
{
    $run -n 2 -l sh -c 'sleep 1000 & echo $! >'"$dir"'/left$RANK; while :; do echo x; done' \
        2>"$dir/err"
    echo $? >"$dir/status"
} | head -n 1 >/dev/null
expect 'output unread: status' "$(cat "$dir/status")" 141
expect 'output unread: nothing said' "$(cat "$dir/err")" ''
for r in 0 1; do
    [ -s "$dir/left$r" ] || continue # it ended before
    expect "output unread: leftover of rank $r" "$(gone "$(cat "$dir/left$r")"; echo $?)" 0
done
if [ -w /dev/full ]; then
    got=$($run -n 2 -l sh -c 'echo x; echo y; echo >'"$dir"'/went$RANK' 2>&1 >/dev/full; echo $?)
    expect 'disk full' "$got" 'ftccl-run: cannot write what the ranks print: No space left on device
1'
    expect 'disk full: the ranks go on' "$(cat "$dir/went0" "$dir/went1" | wc -l)" 2
    got=$($run --help 2>&1 >/dev/full; echo $?)
    expect 'disk full: help' "$got" 'ftccl-run: cannot write: No space left on device
1'
fi
got=$($run -n 1 -l echo x 2>&1 >&-; echo $?)
expect 'stdout closed' "$got" 'ftccl-run: cannot write what the ranks print: Bad file descriptor
1'

bad() {
    $run "$@" >/dev/null 2>"$dir/err"
    expect "refused: $*" "$? $(grep -c . "$dir/err")" '2 1'
}
bad -n 0 true
bad -n x true
bad true
bad -n 2
bad -n 2 --kill 2@1 true
bad -n 2 --kill 1 true
bad -n 2 --stop 1@x true
bad -n 2 --bind socket true
bad -n 2 --standby -1 true
bad -n 2 --standby x true
bad -n 2 --standby 1 --kill 3@1 true

exit $failed
