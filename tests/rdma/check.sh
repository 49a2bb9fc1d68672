#!/bin/sh
# check.sh BUILD [PATTERN]: runs the tests of guest/list.sh, or those whose names the pattern
# matches, in the virtual machine of `rig`, and prints what became of each. The last line is
# "N passed, N failed, N skipped". At most 6 minutes (FT_RDMA_SECONDS). Where no machine can run,
# one line says why.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?the folder of a build}" && pwd)
RIG_WORK=${RIG_WORK:-$build/build-rdma} RIG_BUILD=$build RIG_ARG=${2:-}
export RIG_WORK RIG_BUILD RIG_ARG
out=$RIG_WORK/out
rm -rf "$out/tests" "$out/test-results"
mkdir -p "$out"
"$here/rig" prepare || {
    status=$?
    [ $status -ne 77 ] || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
    exit $status
}
"$here/rig" run tests "${FT_RDMA_SECONDS:-340}"
status=$?
[ ! -f "$out/tests.log" ] || cat "$out/tests.log"
for trs in "$out"/tests/rdma/*.trs; do
    if grep -q FAIL "$trs" 2>/dev/null; then
        echo "-- ${trs%.trs}.log"
        tail -n 60 "${trs%.trs}.log"
    fi
done
case $status in
0) ;;
124) echo "the machine ran past its time" ;;
*)
    echo "the machine ended with status $status"
    tail -n 20 "$RIG_WORK/console.log"
    ;;
esac
mkdir -p "$out/test-results"
[ $status -eq 0 ] || echo "0 1 0" >"$out/test-results/build.count"
counts=$("$here/../../scripts/count-tests" "$out")
echo "$counts"
case $counts in *" 0 failed,"*) exit 0 ;; *) exit 1 ;; esac
