#!/bin/sh
# nightly.sh SOURCE [PART...]: what takes hours, in parts (default: all, in this order):
#   plain address thread  all tests, in a plain build and under AddressSanitizer (with UBSan) and
#                         ThreadSanitizer
#   campaign diagnose     both fault campaigns in full
#   nomem cycles          every allocation fails once (plain and AddressSanitizer); 10,000 times
#                         init and destroy
#   agreement model       a million schedules of the agreement; its model, 20,000 replayed
#   fuzz                  every fuzzer for FT_FUZZ_SECONDS (default 600)
#   distcheck
#   repeat                tests with random draws or failures, FT_REPEAT times (default 50) with
#                         new seeds
# Builds in build-nightly/. parts.txt there gets a line for each part: date, commit, part, passed or
# failed, seconds; a part's output is PART.log. So a night may be spread over several.
set -eu
top=${1:-$(cd "$(dirname "$0")/.." && pwd)}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- plain address thread campaign diagnose nomem cycles agreement model fuzz \
    distcheck repeat
cd "$top"
. "$top/scripts/packages.sh"
# shellcheck disable=SC2086 # a list of words
need $nightly_packages || echo "without them parts are skipped"
[ -x configure ] || ./autogen.sh
work=$top/build-nightly
plain=$work/plain
FT_TEST_LIMIT=${FT_TEST_LIMIT:-3600}
export FT_TEST_LIMIT
first_seed=$((($(date +%s) / 86400) * 10000000))

# built VARIANT: an up-to-date build with its tests.
built() {
    case $1 in
    # As in scripts/test, the kernels' machine code is left out, which takes longest to compile.
    plain) build "$work/plain" --enable-werror --with-cuda-arch=ptx ;;
    address) build "$work/address" --without-mpi --with-sanitizer=address,undefined ;;
    thread) build "$work/thread" --without-mpi --with-sanitizer=thread ;;
    esac
    make -s -C "$work/$1" -j"$jobs" check-build
}

all_tests() {
    built "$1"
    status=0
    make -s -C "$work/$1" check || status=1
    "$top/scripts/count-tests" "$work/$1"
    return $status
}

without_memory() {
    for variant in plain address; do
        built $variant
        make -s -C "$work/$variant" check-nomem || return 1
    done
}

repeat() {
    built plain
    tests=$(cd "$plain/tests" &&
        find sim proc conform -type f -name '*_test' ! -path '*/.libs/*' | sed 's|^|tests/|')
    round=0 status=0
    while [ "$round" -lt "${FT_REPEAT:-50}" ]; do
        round=$((round + 1))
        seed=$((first_seed + round))
        echo "round $round: FT_SEED=$seed"
        # shellcheck disable=SC2086 # a list of words
        GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=$((seed % 99999 + 1)) FT_SEED=$seed \
            make -s -C "$plain" check TESTS="$(echo $tests)" || status=1
    done
    return $status
}

part() {
    case $1 in
    plain | address | thread) all_tests "$1" ;;
    campaign | diagnose) built plain && make -s -C "$plain" "check-$1" ;;
    nomem) without_memory ;;
    cycles) built plain && FT_CYCLES=10000 make -s -C "$plain" check TESTS=tests/proc/comm_test ;;
    agreement)
        built plain && FT_SIM_SEED=$first_seed FT_SIM_RUNS=1000000 \
            make -s -C "$plain" check TESTS=tests/sim/agree_test ;;
    model)
        built plain && FT_SIM_SEED=$first_seed FT_MODEL_TRACES=20000 \
            make -s -C "$plain" check-model ;;
    fuzz) built plain && make -s -C "$plain" fuzz FUZZ_SECONDS="${FT_FUZZ_SECONDS:-600}" ;;
    distcheck)
        built plain && make -s -C "$plain" distcheck \
            DISTCHECK_CONFIGURE_FLAGS=--with-cuda-arch=ptx ;;
    repeat) repeat ;;
    *) echo "there is no part $1"; return 1 ;;
    esac
}

mkdir -p "$work"
commit=$(git describe --always --dirty 2>/dev/null || echo release)
failed=0
for name in "$@"; do
    begun=$(date +%s)
    outcome=passed
    echo "== $name"
    # A shell of its own, with errors that end it, which they do not inside `if`.
    set +e
    (set -e; part "$name") >"$work/$name.log" 2>&1
    [ $? -eq 0 ] || { outcome=failed; failed=1; tail -n 20 "$work/$name.log"; }
    set -e
    echo "$(date +%F) $commit $name $outcome $(($(date +%s) - begun))" | tee -a "$work/parts.txt"
done
exit $failed
