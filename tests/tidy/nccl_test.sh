#!/bin/sh
# Property: docs/nccl-compatibility.md names every call that libnccl.so.2 exports and no other, and
# the environment variables of NCCL's that are looked at and no other as such. Method: compares it
# with tests/abi/symbols.txt and the table of parameters.
root=${top_srcdir:-.}
cd "$root" || exit 1
page=docs/nccl-compatibility.md
status=0
# differ WHAT WANTED GOT
differ() {
    [ "$2" = "$3" ] && return
    missing=$(echo "$2" | grep -vxF "$3" | tr '\n' ' ')
    surplus=$(echo "$3" | grep -vxF "$2" | tr '\n' ' ')
    echo "$page, $1: missing $missing, too many $surplus"
    status=1
}
section() { awk -v title="## $1" '/^## / {on = $0 == title; next} on' "$page"; }
differ calls "$(grep -v '^#' tests/abi/symbols.txt | sed 's/^/nccl/' | LC_ALL=C sort)" \
    "$(section Calls | grep '^| `' | cut -d'|' -f2 | grep -oE 'nccl[A-Za-z0-9]+' | LC_ALL=C sort)"
differ environment "$(grep -oE '"NCCL_[A-Z0-9_]+"' src/base/params.h | tr -d '"' | LC_ALL=C sort)" \
    "$(section Environment | sed '/^Not looked at/,$d' | grep '^| `' | cut -d'|' -f2 |
        grep -oE 'NCCL_[A-Z0-9_]+' | LC_ALL=C sort)"
exit $status
