#!/bin/sh
# Property: `make install` gives what a program needs: header, library, pkg-config file; the program of the README builds with
# them alone and prints the sums. Method: an installation below the build directory, a compiler, and the program.
set -eu
prefix=$top_builddir/test-install
rm -rf "$prefix"
trap 'rm -rf "$prefix"' EXIT
command -v pkg-config >/dev/null || { echo "no pkg-config"; exit 77; }
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for installing"; exit 77 ;; esac
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$top_builddir" install prefix="$prefix" exec_prefix="$prefix" libdir="$prefix/lib" includedir="$prefix/include" \
    bindir="$prefix/bin" mandir="$prefix/share/man" pkgconfigdir="$prefix/lib/pkgconfig" DESTDIR= >/dev/null 2>&1 ||
    { echo "make install failed"; exit 1; }
# The pkg-config file names the prefix of configure; that of this installation is given here.
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
flags=$(pkg-config --define-variable=prefix="$prefix" --define-variable=libdir="$prefix/lib" \
    --define-variable=includedir="$prefix/include" --cflags --libs ftccl)
# shellcheck disable=SC2086 # flags are words
${CC:-cc} -Wall -Wextra -Werror "$top_srcdir/examples/hello.c" -o "$prefix/hello" $flags
# shellcheck disable=SC2086
${CC:-cc} -Wall -Wextra -Werror "$top_srcdir/examples/elastic_allreduce.c" -o "$prefix/elastic_allreduce" $flags
got=$(LD_LIBRARY_PATH="$prefix/lib" timeout 60 "$prefix/hello")
want=$(printf 'rank 0 has 10\nrank 1 has 10\nrank 2 has 10\nrank 3 has 10')
[ "$got" = "$want" ] || { echo "the program printed: $got"; exit 1; }
# The README shows exactly this program.
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$top_srcdir/README.md" | diff - "$top_srcdir/examples/hello.c" ||
    { echo "the program in README.md differs from examples/hello.c"; exit 1; }
exported=$(nm -D --defined-only "$prefix/lib/libftccl.so" | awk '$2 == "T" && $3 !~ /^(ftccl|pftccl)/ {print $3}')
[ -z "$exported" ] || { echo "exported, but not of the public interface: $exported"; exit 1; }
