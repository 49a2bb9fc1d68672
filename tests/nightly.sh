#!/bin/sh
# nightly.sh SOURCE: what takes hours. All tests under both sanitizers, the fault campaign in full,
# the fuzzers for FT_FUZZ_SECONDS each (default 600), every test that is random or about failures
# FT_REPEAT times (default 50) with new seeds. Builds in build-nightly/.
set -eu
top=${1:-$(cd "$(dirname "$0")/.." && pwd)}
cd "$top"
. "$top/scripts/packages.sh"
# shellcheck disable=SC2086 # a list of words
need $nightly_packages || echo "without them parts are skipped"
[ -x configure ] || ./autogen.sh
work=$top/build-nightly
status=0
FT_FUZZ_SECONDS=${FT_FUZZ_SECONDS:-600}
FT_TEST_LIMIT=${FT_TEST_LIMIT:-3600}
export FT_FUZZ_SECONDS FT_TEST_LIMIT
for variant in plain address,undefined thread; do
    directory=$work/$variant
    case $variant in
    plain) build "$directory" --enable-werror ;;
    *) build "$directory" --without-mpi --with-sanitizer="$variant" ;;
    esac
    make -s -C "$directory" -j"$jobs" check-build
    make -s -C "$directory" check || status=1
done
make -s -C "$work/plain" check-campaign || status=1
make -s -C "$work/plain" check-diagnose || status=1
for variant in plain address,undefined; do make -s -C "$work/$variant" check-nomem || status=1; done
FT_CYCLES=10000 make -s -C "$work/plain" check TESTS=tests/proc/comm_test || status=1
round=0
while [ "$round" -lt "${FT_REPEAT:-50}" ]; do
    round=$((round + 1))
    GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=$((round + $(date +%-j) * 100)) FT_SEED=$round \
        make -s -C "$work/plain" check \
        TESTS="$(cd "$work/plain/tests" &&
            find sim proc conform -type f -name '*_test' ! -path '*/.libs/*' 2>/dev/null |
            sed 's|^|tests/|' | tr '\n' ' ')" || { echo "failed in round $round"; status=1; }
done
FT_SIM_SEED=$((($(date +%-j) + 1) * 10000000)) FT_SIM_RUNS=1000000 \
    make -s -C "$work/plain" check TESTS=tests/sim/agree_test || status=1
FT_SIM_SEED=$((($(date +%-j) + 1) * 10000000)) FT_MODEL_TRACES=20000 \
    make -s -C "$work/plain" check-model || status=1
make -s -C "$work/plain" distcheck || status=1
"$top/scripts/count-tests" "$work/plain" "$work/address,undefined" "$work/thread"
exit $status
