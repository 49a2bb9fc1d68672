#!/bin/sh
# shellcheck disable=SC2016
# Property: replicas of several ranks that are killed at any moment (SIGKILL), and started again or
# replaced by standbys, end with the same state, bit by bit; all ranks have trained the same
# batches, each of them once, and training again from their log gives the same result. Method:
# examples/replicas under ftccl-run; a seed decides sizes, moments and victims of each run. The
# program itself sees in every sum whether it is of the batches that it should be of.
# usage: replicas_test.sh [RUNS [SEED]]; FT_SEED repeats the first run
cd "${top_builddir:-.}" || exit 99
runs=${1:-${FT_REPLICAS_RUNS:-5}}
seed=${FT_SEED:-${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}}
[ -x ./examples/replicas ] || { echo 'SKIP: examples/replicas was not built'; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0
killed=0

# choose LOWEST HIGHEST: a number; the next one of the run's sequence
choose() {
    state=$(((state * 1103515245 + 12345) % 2147483648))
    chosen=$(($1 + state / 65536 % ($2 - $1 + 1)))
}

# Lines: end REPLICA LOCAL ..., parameters REPLICA LOCAL NUMBER..., trained REPLICA LOCAL COUNT...
# ends: how many of each there should be, at least
judge() {
    awk -v ends="$1" -v ranks="$2" -v steps="$3" '
        $1 == "end" {
            n++
            if ($5 != steps) bad("ended after " $5 " steps: " $0)
            if ($2 " " $3 in end) bad("two ranks had one role: " $0)
            end[$2 " " $3] = $7
        }
        $1 == "parameters" || $1 == "trained" {
            what = $1; role = $2 " " $3; local = $1 == "trained" ? "all" : $3
            $1 = $2 = $3 = ""
            if (!((what, local) in seen)) seen[what, local] = $0
            if (seen[what, local] != $0) bad(what " of " role " differ from those of others")
            if (what == "trained") {
                if (NF - 3 != steps) bad("counts of " NF - 3 " steps: " role)
                for (i = 4; i <= NF; i++) sum[role] += $i
            }
            of[what]++
        }
        function bad(text) { print "FAIL: " text; wrong = 1 }
        END {
            for (role in end)
                if (sum[role] != end[role])
                    bad(role " has trained " end[role] " batches, its steps " sum[role])
            if (n < ends || n > of["parameters"] || n > of["trained"])
                bad(n + 0 " ranks of " ends " came to the end")
            exit wrong
        }' "$dir/out"
}

# run SEED: sizes and victims
run() {
    state=$1
    for i in 1 2 3; do choose 0 1; done
    choose 1 3; ranks=$chosen
    choose 2 4; replicas=$chosen
    choose 0 2; standbys=$chosen
    choose 40 120; steps=$chosen
    choose 1 5; victims=$chosen
    n=$((ranks * replicas))
    all=$((n + standbys))
    kills=
    for i in $(seq "$victims"); do
        choose 0 $((all - 1)); victim=$chosen
        choose 0 $((steps * 10)); at=$chosen # the run takes longer than that
        kills="$kills --kill $victim@$((at / 1000)).$(printf %03d $((at % 1000)))"
    done
    choose 0 2; state_mb=$((chosen * 4)) # a fetch may take longer than a step
    [ $standbys -gt 0 ] && kills="--standby $standbys $kills"
    killed=$((killed + victims))
    options="-r $ranks -s $steps -p 10 -w 60 -m $state_mb"
    command="ftccl-run -n $n -l --restart $kills replicas $options"
    # shellcheck disable=SC2086 # lists of words
    timeout -k 5 240 ./tools/ftccl-run -n $n -l --restart $kills ./examples/replicas $options \
        >"$dir/labelled" 2>&1
    status=$?
    sed 's/^\[[0-9]*\] //' "$dir/labelled" >"$dir/out"
    # Nobody is killed at the end, so all ranks of a replica must hear of its last commit.
    if judge $n $ranks $steps && [ $status -eq 0 ]; then
        grep "step $steps: the commit: " "$dir/labelled" || return
    fi
    echo "FAIL: status $status: $command"
    echo "replay: FT_SEED=$1 tests/proc/replicas_test.sh 1"
    cut -c 1-300 "$dir/labelled"
    failed=$((failed + 1))
}

# A standby that nobody can need any more is not waited for; this takes half a minute.
timeout -k 5 200 ./tools/ftccl-run -n 1 --standby 1 sh -c '[ $FTCCL_STANDBY = 1 ] || exit 3
    exec sleep 1000' 2>"$dir/vain" &
vain=$!

echo "seed $seed; replay: FT_SEED=$seed tests/proc/replicas_test.sh $runs"
for i in $(seq "$runs"); do
    run $(((seed + i - 1) % 2147483648))
done
wait $vain
status=$?
if [ $status != 3 ] || ! grep -q 'no standby has got a role' "$dir/vain"; then
    echo "FAIL: a standby in vain: status $status, not 3"
    cat "$dir/vain"
    failed=$((failed + 1))
fi
echo "$runs runs, $killed kills, $failed failed"
[ $failed -eq 0 ]
