#!/bin/sh
# limit.sh PROGRAM [ARGUMENT...]: runs one test under a time limit and lets googletest write its
# cases to test-results/. FT_TEST_LIMIT: seconds (default 300; the sanitizers' builds multiply by
# FT_TEST_SLOWDOWN). A test that exceeds it is killed with its process group and fails.
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
timeout -k 5 "$seconds" "$@"
status=$?
case $status in 124 | 137) echo "$name: killed after the limit of $seconds s" ;; esac
exit $status
