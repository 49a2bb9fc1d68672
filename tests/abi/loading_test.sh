#!/bin/sh
# Property: each way of loading that docs/nccl-compatibility.md names takes our libnccl.so.2, with
# its libftccl, in place of a wheel's: LD_PRELOAD, the wheel's file replaced, VLLM_NCCL_SO_PATH; and
# LD_LIBRARY_PATH does not, for a framework with a DT_RPATH. It can be unloaded.
# Method: a stand-in for a wheel (a library that says 2.1.1) and one for a framework that finds it
# as PyTorch's wheels do.
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for loading"; exit 77 ;; esac
here=$top_srcdir/tests/abi
libraries=$top_builddir/src/.libs
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
status=0
set -e
wheel=$work/site-packages/nvidia/nccl/lib
framework=$work/site-packages/torch/lib/libframework.so
mkdir -p "$wheel" "$(dirname "$framework")" "$work/installed/ftccl"
${CC:-cc} -shared -fPIC -DWHEEL "$here/wheel.c" -o "$wheel/libnccl.so.2" -Wl,-soname,libnccl.so.2
# shellcheck disable=SC2016 # the loader's word
${CC:-cc} -shared -fPIC "$here/wheel.c" -o "$framework" -L"$wheel" -l:libnccl.so.2 \
    -Wl,--disable-new-dtags '-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib'
${CC:-cc} -Wall -Wextra -Werror "$here/loading.c" -o "$work/loading" -ldl
# As `make install` lays them out.
cp "$libraries/libnccl.so.2" "$work/installed/ftccl/"
cp "$libraries/libftccl.so.0" "$work/installed/"
set +e

# expect WANTED WAY [NAME=VALUE ...] [FRAMEWORK]
expect() {
    wanted=$1 way=$2
    shift 2
    got=$(env -u LD_PRELOAD -u LD_LIBRARY_PATH -u NCCL_DEBUG timeout 120 env "$@" 2>&1)
    [ "$got" = "$wanted" ] || { echo "$way: got \"$got\", not \"$wanted\""; status=1; }
}
ours="22606 7"
expect "20101 0" "nothing changed" "$work/loading" "$framework"
expect "20101 0" "LD_LIBRARY_PATH against a DT_RPATH" \
    LD_LIBRARY_PATH="$work/installed/ftccl" "$work/loading" "$framework"
expect "$ours" LD_PRELOAD \
    LD_PRELOAD="$work/installed/ftccl/libnccl.so.2" "$work/loading" "$framework"
expect "$ours" VLLM_NCCL_SO_PATH \
    VLLM_NCCL_SO_PATH="$work/installed/ftccl/libnccl.so.2" "$work/loading"
expect "$ours" "VLLM_NCCL_SO_PATH in a process that has the wheel's" WHEEL="$wheel/libnccl.so.2" \
    VLLM_NCCL_SO_PATH="$work/installed/ftccl/libnccl.so.2" "$work/loading"
cp "$work/installed/ftccl/libnccl.so.2" "$work/installed/libftccl.so.0" "$wheel/"
expect "$ours" "the wheel's file replaced" "$work/loading" "$framework"
exit $status
