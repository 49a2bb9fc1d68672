#!/bin/sh
# Property: `make install` gives what a program needs: header, library, files for pkg-config and
# CMake; the program of the README builds with them alone and prints the sums; and what a user calls
# lies in one folder, the perf programs too. Method: an installation below the build directory, a
# compiler, CMake if it is there, and the program.
set -eu
prefix=$top_builddir/test-install
rm -rf "$prefix" "$prefix-moved"
trap 'rm -rf "$prefix" "$prefix-moved"' EXIT
command -v pkg-config >/dev/null || { echo "no pkg-config"; exit 77; }
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for installing"; exit 77 ;; esac
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$top_builddir" install \
    prefix="$prefix" exec_prefix="$prefix" libdir="$prefix/lib" includedir="$prefix/include" \
    bindir="$prefix/bin" mandir="$prefix/share/man" pkgconfigdir="$prefix/lib/pkgconfig" \
    cmakedir="$prefix/lib/cmake/ftccl" DESTDIR= >/dev/null 2>&1 ||
    { echo "make install failed"; exit 1; }
# The pkg-config file names the prefix of configure; that of this installation is given here.
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
flags=$(pkg-config --define-variable=prefix="$prefix" --define-variable=libdir="$prefix/lib" \
    --define-variable=includedir="$prefix/include" --cflags --libs ftccl)
# shellcheck disable=SC2086 # flags are words
${CC:-cc} -Wall -Wextra -Werror "$top_srcdir/examples/hello.c" -o "$prefix/hello" $flags
# shellcheck disable=SC2086
${CC:-cc} -Wall -Wextra -Werror "$top_srcdir/examples/elastic_allreduce.c" \
    -o "$prefix/elastic_allreduce" $flags
got=$(LD_LIBRARY_PATH="$prefix/lib" timeout 60 "$prefix/hello")
want=$(printf 'rank 0 has 10\nrank 1 has 10\nrank 2 has 10\nrank 3 has 10')
[ "$got" = "$want" ] || { echo "the program printed: $got"; exit 1; }
for program in ftccl-run ftccl-info ncclras all_reduce_perf all_gather_perf broadcast_perf \
    reduce_perf reduce_scatter_perf alltoall_perf \
    alltoallv_perf gather_perf scatter_perf sendrecv_perf hypercube_perf; do
    [ -x "$prefix/bin/$program" ] || { echo "$program is not in bin"; exit 1; }
done
# As a user calls them: found by PATH.
PATH=$prefix/bin:$PATH LD_LIBRARY_PATH=$prefix/lib timeout 60 ftccl-run -n 2 all_reduce_perf \
    -b 8 -e 8 -n 2 -w 1 >"$prefix/table" ||
    { echo "all_reduce_perf of the installation failed"; exit 1; }
# with_cmake ASKED STATUS: whether a project that asks find_package for this finds it; if it does it
# is built and run.
with_cmake() {
    rm -rf "$prefix/cmake-build"
    cmake -S "$prefix/cmake-project" -B "$prefix/cmake-build" -DCMAKE_PREFIX_PATH="$moved" \
        -DASKED="$1" >"$prefix/cmake.log" 2>&1 &&
        cmake --build "$prefix/cmake-build" >>"$prefix/cmake.log" 2>&1 &&
        got=$(timeout 60 "$prefix/cmake-build/hello") && [ "$got" = "$want" ] && found=0 || found=1
    [ $found -eq "$2" ] || {
        cat "$prefix/cmake.log"
        echo "find_package(ftccl $1): $found, wanted $2"
        exit 1
    }
}
if command -v cmake >/dev/null 2>&1; then
    mkdir "$prefix/cmake-project"
    cp "$top_srcdir/examples/hello.c" "$prefix/cmake-project"
    cat >"$prefix/cmake-project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(hello C)
find_package(ftccl ${ASKED} REQUIRED CONFIG NO_CMAKE_SYSTEM_PATH NO_CMAKE_PACKAGE_REGISTRY
             NO_SYSTEM_ENVIRONMENT_PATH)
add_executable(hello hello.c)
target_link_libraries(hello ftccl::ftccl)
END
    # elsewhere than where it was installed
    moved=$prefix-moved
    mkdir "$moved"
    cp -R "$prefix/lib" "$prefix/include" "$moved"
    version=$(sed -n 's/^Version: //p' "$prefix/lib/pkgconfig/ftccl.pc")
    with_cmake "" 0
    with_cmake "$version;EXACT" 0
    with_cmake 0.0.1 0
    with_cmake 0.999 1
    with_cmake 99 1
    rm "$moved/include/ftccl.h"
    with_cmake "" 1
else
    echo "no cmake: its package file was not tried"
fi
# The README shows exactly this program.
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$top_srcdir/README.md" |
    diff - "$top_srcdir/examples/hello.c" ||
    { echo "the program in README.md differs from examples/hello.c"; exit 1; }
exported=$(nm -D --defined-only "$prefix/lib/libftccl.so" |
    awk '$2 == "T" && $3 !~ /^(ftccl|pftccl)/ &&
        $3 !~ /^ft_shim_[a-z_]*@@FTCCL_PRIVATE$/ {print $3}')
[ -z "$exported" ] || { echo "exported, but not of the public interface: $exported"; exit 1; }
# A program of NCCL's with the header and the library that it finds only when it is told where they
# are.
cat >"$prefix/prog.c" <<'END'
#include <nccl.h>
#include <stdio.h>
int main(void)
{
    ncclComm_t comm;
    int version = 0, count = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) return 1;
    if (ncclCommInitAll(&comm, 1, NULL) != ncclSuccess) return 1;
    if (ncclCommCount(comm, &count) != ncclSuccess) return 1;
    if (ncclCommDestroy(comm) != ncclSuccess) return 1;
    printf("%d\n", count);
    return 0;
}
END
${CC:-cc} -Wall -Wextra -Werror -I"$prefix/include/ftccl" "$prefix/prog.c" -o "$prefix/prog" \
    "$prefix/lib/ftccl/libnccl.so.2" -Wl,-rpath,"$prefix/lib/ftccl"
got=$(env -u LD_LIBRARY_PATH timeout 60 "$prefix/prog")
[ "$got" = 1 ] || { echo "the program of NCCL's printed: $got"; exit 1; }
