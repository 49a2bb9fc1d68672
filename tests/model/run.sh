#!/bin/sh
# run.sh: explores tests/model/agree.pml completely with spin, within 1.5 GiB and some minutes, and
# shows that the model can fail: each wrong rule must give two decisions. Then it lets the model
# take the steps of FT_MODEL_TRACES (default 2000) schedules of the simulation from FT_SIM_SEED on
# ($AGREE_TEST), and steps of which one was made wrong, which it must refuse. Works in $MODEL_BUILD
# (default build-model/ here); without spin it exits 77.
# The two larger worlds are stored as hashes of 64 bits (-DHC4): a state is taken for another one
# with a chance far below 1%.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
work=${MODEL_BUILD:-$PWD/build-model}
command -v spin >/dev/null 2>&1 || { echo "skipped: spin is not installed"; exit 77; }
command -v "${CC:-gcc}" >/dev/null 2>&1 ||
    { echo "skipped: no ${CC:-gcc} to compile spin's verifier"; exit 77; }

# explore NAME STORE DEFINES...: leaves what the verifier says in NAME/log
explore() {
    name=$1 store=$2
    shift 2
    mkdir -p "$work/$name"
    cd "$work/$name"
    spin -a "$@" "$top/tests/model/agree.pml" >spin.log 2>&1 || { cat spin.log; exit 1; }
    ${CC:-gcc} -O2 -w -DSAFETY "-D$store" -DMEMLIM=1500 -o pan pan.c
    timeout "${MODEL_LIMIT:-3600}" ./pan -m2000 -w24 >log 2>&1 || true
}
stored() { sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log; }
status=0
holds() {
    explore "$@"
    if grep -q 'errors: 0' log && ! grep -q 'reached -DMEMLIM\|max search depth too small' log; then
        echo "$1: holds in all $(stored) states"
    else
        echo "$1: FAILED or not complete, see $work/$1/log"
        tail -n 20 log
        status=1
    fi
}
fails() {
    explore "$@"
    if grep -q 'assertion violated' log; then
        echo "$1: two decisions, as it must be"
    else
        echo "$1: this wrong rule went unnoticed, see $work/$1/log"
        status=1
    fi
}
# traces FILE COUNT SEED: what the simulation does in so many schedules
traces() {
    FT_SIM_TRACE=$1 FT_SIM_RUNS=$2 FT_SIM_SEED=$3 "$AGREE_TEST" --gtest_filter='AgreeSim.*' \
        >"$1.log" 2>&1 || { tail -n 20 "$1.log"; status=1; }
}
replay() {
    [ -x "${AGREE_TEST:-}" ] ||
        { echo "replay: passed over: the simulation is not built (googletest)"; return 0; }
    command -v python3 >/dev/null 2>&1 ||
        { echo "replay: passed over: python3 is not installed"; return 0; }
    mkdir -p "$work/replay"
    cd "$work/replay"
    traces "$work/replay/traces" "${FT_MODEL_TRACES:-2000}" "${FT_SIM_SEED:-1}"
    "$top/tests/model/replay" traces || status=1
    traces "$work/replay/few" 180 1
    "$top/tests/model/replay" --alter few || status=1
}
holds ranks3-ballots3 COLLAPSE -DN=3 -DB=3
holds ranks4-ballots2 HC4 -DN=4 -DB=2
holds ranks4-ballots3 HC4 -DN=4 -DB=3
fails wrong-majority-of-the-living COLLAPSE -DN=3 -DB=2 -DLIVING
fails wrong-no-acknowledgement COLLAPSE -DN=4 -DB=2 -DNOACK
fails wrong-accept-below-promise COLLAPSE -DN=3 -DB=2 -DNOPROMISE
fails wrong-ignore-accepted COLLAPSE -DN=3 -DB=2 -DFRESH
replay
exit $status
