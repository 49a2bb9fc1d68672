#!/bin/sh
# Property: libnccl.so.2 exports the names of NCCL's, unversioned, pncclX strong and ncclX weak, and
# nothing else; it carries NCCL's soname, needs libftccl and finds it beside itself. Method: nm and
# readelf, compared with symbols.txt and, where configure found one, with NVIDIA's library.
root=${top_srcdir:-.}
ours=${top_builddir:-.}/src/.libs/libnccl.so.2
command -v nm >/dev/null && command -v readelf >/dev/null || { echo "no nm or readelf"; exit 77; }
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
status=0
complain() { echo "$1"; status=1; }
exported() { nm -D --defined-only "$1" | awk '{print $2, $3}' | LC_ALL=C sort; }

awk '/^#/ {next} {print "T pnccl" $1; print "W nccl" $1}
    END {print "T ncclResetDebugInitInternal"}' "$root/tests/abi/symbols.txt" |
    LC_ALL=C sort >"$work/wanted"
exported "$ours" >"$work/ours"
diff "$work/wanted" "$work/ours" >"$work/diff" ||
    { complain "symbols.txt (<) and $ours (>) differ:"; cat "$work/diff"; }
dynamic=$(readelf -d "$ours")
case $dynamic in *"soname: [libnccl.so.2]"*) ;; *) complain "the soname is not libnccl.so.2" ;; esac
case $dynamic in
*"Shared library: [libftccl.so.0]"*) ;;
*) complain "libftccl is not needed" ;;
esac
# shellcheck disable=SC2016 # the loader's word
case $dynamic in
*'(RUNPATH)'*'[$ORIGIN:$ORIGIN/..]'*) ;;
*) complain "the RUNPATH is not that of its own folder: $dynamic" ;;
esac

if [ -z "${NCCL_LIBRARY:-}" ]; then
    [ $status -eq 0 ] || exit 1
    echo "compared with tests/abi/symbols.txt alone:" \
        "configure found no libnccl.so.2 (--with-nccl=DIR names one)"
    exit 77
fi
exported "$NCCL_LIBRARY" | grep nccl >"$work/real"
missing=$(LC_ALL=C comm -13 "$work/ours" "$work/real")
if [ -n "$missing" ]; then
    version=$(grep -aoE 'NCCL version 2\.[0-9]+' "$NCCL_LIBRARY" | head -n 1)
    # What came after 2.30 is not promised.
    if [ "${version##*.}" -gt 30 ]; then
        echo "$NCCL_LIBRARY is newer ($version) and has more: $missing"
    else
        complain "$NCCL_LIBRARY exports what $ours does not: $missing"
    fi
fi
exit $status
