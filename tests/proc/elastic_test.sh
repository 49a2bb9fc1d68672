#!/bin/sh
# Property: the loop of examples/elastic_allreduce.c outlives any of its ranks, takes in the
# replacement, and all ranks end with the same step and the same sums; two deaths at once leave two
# ranks that go on. Method: the example under ftccl-run, each rank killed in turn at a random
# moment; scripts/timeline complains about what is missing. FT_SEED repeats the moments.
cd "${top_builddir:-.}" || exit 99
run="timeout -k 5 60 ./tools/ftccl-run"
timeline="${top_srcdir:-.}/scripts/timeline"
seed=${FT_SEED:-$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')}
echo "seed $seed; replay: FT_SEED=$seed tests/proc/elastic_test.sh"
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

# check NAME OPTION...: one run; its lines by time are in $dir/log
check() {
    name=$1
    shift
    rm -rf "$dir/meeting"
    mkdir "$dir/meeting"
    $run "$@" ./examples/elastic_allreduce "$dir/meeting" 4 >"$dir/out" 2>&1
    status=$?
    sed 's/^ftccl-run: //' "$dir/out" | sort -n >"$dir/log"
    [ $status -eq 0 ] && return
    echo "FAIL $name: status $status"
    failed=1
}

for victim in 0 1 2 3; do
    at=1.$((100 + (seed + victim * 97) % 800))
    check "rank $victim killed at $at" -n 4 --kill "$victim@$at" --restart
    awk -f "$timeline" "$dir/log" || { cat "$dir/log"; failed=1; }
done

check 'ranks 1 and 2 killed' -n 4 --kill 1@1.2 --kill 2@1.2
kinds=$(sed -n 's/.*: end after//p' "$dir/log" | sort | uniq -c | awk '{print $1}' | tr '\n' ' ')
[ "$kinds" = '2 ' ] ||
    { echo "FAIL two of four: not the same end on both"; cat "$dir/log"; failed=1; }
exit $failed
