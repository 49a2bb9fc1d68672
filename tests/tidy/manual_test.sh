#!/bin/sh
# Property: manual pages are well formed, and the overview names every public call. Method: groff's
# warnings, and the calls declared in the header looked up in man/ftccl.3.
root=${top_srcdir:-.}
status=0
calls=$(grep -oE '^[a-zA-Z].*[ *](ftccl[A-Z][A-Za-z]*)\(' "$root/include/ftccl.h" |
    sed -E 's/.*[ *](ftccl[A-Za-z]*)\($/\1/' | sort -u)
for call in $calls; do
    grep -q "$call" "$root/man/ftccl.3" || { echo "man/ftccl.3 does not name $call"; status=1; }
done
command -v groff >/dev/null 2>&1 || {
    echo "no groff: the form was not checked"
    [ $status -eq 0 ] && exit 77
    exit 1
}
for page in "$root"/man/*.[0-9]; do
    complaints=$(groff -man -ww -z -Tutf8 "$page" 2>&1 |
        grep -v 'cannot adjust line\|can.t break line')
    [ -z "$complaints" ] || { echo "$complaints"; status=1; }
done
exit $status
