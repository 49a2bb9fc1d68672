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
exported=$(nm -D --defined-only "$prefix/lib/libftccl.so" | awk '$2 == "T" && $3 !~ /^(ftccl|pftccl)/ && $3 !~ /^ft_shim_[a-z_]*@@FTCCL_PRIVATE$/ {print $3}')
[ -z "$exported" ] || { echo "exported, but not of the public interface: $exported"; exit 1; }
# A program of NCCL's with the header and the library that it finds only when it is told where they are.
cat >"$prefix/prog.c" <<'END'
#include <nccl.h>
#include <stdio.h>
int main(void)
{
    ncclComm_t comm;
    int version = 0, count = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE || ncclCommInitAll(&comm, 1, NULL) != ncclSuccess) return 1;
    if (ncclCommCount(comm, &count) != ncclSuccess || ncclCommDestroy(comm) != ncclSuccess) return 1;
    printf("%d\n", count);
    return 0;
}
END
${CC:-cc} -Wall -Wextra -Werror -I"$prefix/include/ftccl" "$prefix/prog.c" -o "$prefix/prog" "$prefix/lib/ftccl/libnccl.so.2" -Wl,-rpath,"$prefix/lib/ftccl"
got=$(env -u LD_LIBRARY_PATH timeout 60 "$prefix/prog")
[ "$got" = 1 ] || { echo "the program of NCCL's printed: $got"; exit 1; }
