#!/bin/sh
# Property: scripts/count-tests counts cases, not programs: also of programs with the same name in
# two folders; a program that ended without telling a failed case adds one. Method: tests that say
# what they are told to, run by tests/limit.sh.
root=$(cd "${top_srcdir:-.}" && pwd)
build=$(mktemp -d) || exit 99
trap 'rm -rf "$build"' EXIT
cd "$build" || exit 99
# ran TEST STATUS OUTCOME [COUNTS]: a test that writes these counts, or none, and ends so.
ran() {
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "[ -z '${4-}' ] || echo '${4-}' >\"\$FT_RESULTS/\$FT_TEST_NAME.count\"" \
        "exit $2" >"$1.sh"
    top_builddir=$build sh "$root/tests/limit.sh" "./$1.sh"
    echo ":test-result: $3" >"$1.trs"
}
status=0
# expect WANTED
expect() {
    got=$("$root/scripts/count-tests" "$build")
    [ "$got" = "$1" ] || { echo "got \"$got\", wanted \"$1\""; status=1; }
}
ran tests/unit/same_test 0 PASS '3 0 1'
ran tests/proc/same_test 0 PASS '40 0 0'
expect "43 passed, 0 failed, 1 skipped"
ran tests/unit/bare_test 0 PASS
ran tests/unit/skip_test 77 SKIP
expect "44 passed, 0 failed, 2 skipped"
ran tests/proc/crash_test 134 FAIL '5 0 0'
ran tests/proc/fail_test 1 FAIL '6 2 0'
expect "55 passed, 3 failed, 2 skipped"
exit $status
