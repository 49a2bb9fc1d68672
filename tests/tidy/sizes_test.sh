#!/bin/sh
# Property: a function has at most 300 tokens, a complexity of 15 and 7 parameters (calls of the
# public interface follow NCCL's); in tests, 600 tokens and a complexity of 25. Method:
# tests/tidy/measure counts them. exceptions.txt lists, with the reason, what may be larger; a line
# of it that nothing needs is a fault.
root=${top_srcdir:-.}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
cd "$root" || exit 1
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
"$here/measure" --functions . src tools perf examples include tests >"$work/functions" || exit 1
awk '
    {
        split($1, place, ":")
        tests = place[1] ~ /^tests\//
        much = ""
        if ($3 > (tests ? 600 : 300)) much = much ", " $3 " tokens"
        if ($4 > (tests ? 25 : 15)) much = much ", a complexity of " $4
        if ($5 > 7 && $2 !~ /^p?n?(ft)?ccl[A-Z]/) much = much ", " $5 " parameters"
        if (much != "") print place[1] " " $2 " " $1 " " $2 " has " substr(much, 3)
    }' "$work/functions" | sort >"$work/found"
awk '!/^#/ && NF {if (NF < 3) print "no reason: " $0; print $1 " " $2}' tests/tidy/exceptions.txt |
    sort >"$work/excepted"
status=0
grep '^no reason' "$work/excepted" && status=1
while read -r file name rest; do
    grep -qxF "$file $name" "$work/excepted" || { echo "$rest"; status=1; }
done <"$work/found"
while read -r file name; do
    grep -qF "$file $name " "$work/found" ||
        { echo "tests/tidy/exceptions.txt: $file $name needs no exception"; status=1; }
done <"$work/excepted"
exit $status
