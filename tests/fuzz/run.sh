#!/bin/sh
# run.sh [NAME...]: builds each tests/fuzz/fuzz_*.c (or those named, as in `run.sh bootstrap`) with
# clang's libFuzzer and AddressSanitizer and runs it for FUZZ_SECONDS (default 30). The library is
# built with coverage in build-fuzz/, inputs that reached something new are kept in
# build-fuzz/corpus/NAME and a crash's input stays in build-fuzz/. CLANG names the compiler.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
seconds=${FUZZ_SECONDS:-${FT_FUZZ_SECONDS:-30}}
clang=${CLANG:-clang}
build=${FUZZ_BUILD:-$PWD/build-fuzz}
if ! echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n);' \
    'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) {return d && n > 9e9;}' |
    "$clang" -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null; then
    echo "skipped: $clang cannot link with -fsanitize=fuzzer,address"
    exit 77
fi
mkdir -p "$build/corpus"
cd "$build"
[ -f Makefile ] || "$top/configure" --quiet --disable-dependency-tracking --without-mpi \
    --with-sanitizer=fuzzer-no-link,address CC="$clang" CXX="$clang++"
make -s -j"$(nproc 2>/dev/null || echo 2)" config.h
make -s -j"$(nproc 2>/dev/null || echo 2)" src/libftcore.la
[ $# -gt 0 ] || set -- $(cd "$top/tests/fuzz" && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')
status=0
for name in "$@"; do
    mkdir -p "corpus/$name"
    ./libtool --silent --tag=CC --mode=link "$clang" -std=gnu11 -g -O1 -D_GNU_SOURCE \
        -DFT_LIBFUZZER -fsanitize=fuzzer,address -include config.h -I. -I"$top/include" \
        -I"$top/src" -o "fuzz_$name" "$top/tests/fuzz/fuzz_$name.c" src/libftcore.la -lsodium
    echo "fuzz_$name for $seconds s"
    FTCCL_DEBUG=VERSION "./fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/crash-$name-" "corpus/$name" \
        2>"fuzz_$name.log" || { tail -n 40 "fuzz_$name.log"; status=1; }
    grep -E 'number_of_executed_units|new_units_added' "fuzz_$name.log" || true
done
exit $status
