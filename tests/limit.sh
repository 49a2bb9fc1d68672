#!/bin/sh
# limit.sh PROGRAM [ARGUMENT...]: runs one test under a time limit and lets googletest write its
# cases to test-results/. FT_TEST_LIMIT: seconds (default 300; the sanitizers' builds multiply by
# FT_TEST_SLOWDOWN). A test that exceeds it is killed with its process group and fails.
# test-results/NAME.time gets its seconds and those of processor time; scripts/test-times shows
# them.
results=${top_builddir:-.}/test-results
name=$(echo "${1##*tests/}" | sed 's|/|_|g; s|\.sh$||') # of tests/unit/net_test: unit_net_test
mkdir -p "$results"
rm -f "$results/$name.json" "$results/$name.count"
FT_RESULTS=$(cd "$results" && pwd)
FT_TEST_NAME=$name
GTEST_OUTPUT=json:$FT_RESULTS/$name.json
export FT_RESULTS FT_TEST_NAME GTEST_OUTPUT
case $1 in *.sh) set -- sh "$@" ;; esac
seconds=$((${FT_TEST_LIMIT:-300} * ${FT_TEST_SLOWDOWN:-1}))
begun=$(date +%s)
timeout -k 5 "$seconds" "$@"
status=$?
times >"$results/$name.time" # in this shell; the last line is of what it ran: 1m2.345s 0m0.678s
cpu=$(sed -n '$s/[ms]/ /gp' "$results/$name.time" |
    awk '{printf "%.1f", $1 * 60 + $2 + $3 * 60 + $4}')
echo "$(($(date +%s) - begun)) $cpu" >"$results/$name.time"
case $status in 124 | 137) echo "$name: killed after the limit of $seconds s" ;; esac
exit $status
