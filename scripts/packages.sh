# Sourced by demo, test and `make compare`: installs the Debian packages that are missing, and only
# those.
# need PACKAGE...: with apt-get and root (or sudo) it installs; elsewhere it names what configure
# will look for.
need() {
    missing=
    for package in "$@"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=
        [ "$status" = installed ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "no apt-get here; these Debian packages (or their like) are needed:$missing" >&2
        return 0
    fi
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || { echo "run as root or install:$missing" >&2; return 1; }
        as_root=sudo
    fi
    echo "installing:$missing"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

build_packages="autoconf automake libtool pkg-config make gcc g++ libc6-dev libsodium-dev"
optional_packages="libhwloc-dev libibverbs-dev libfabric-dev libjansson-dev libncurses-dev"
optional_packages="$optional_packages libmicrohttpd-dev libsqlite3-dev libcurl4-openssl-dev"
test_packages="clang-format cmake libgtest-dev mpich libmpich-dev groff-base man-db procps"
test_packages="$test_packages python3 python3-dev python3-venv chromium iproute2 nftables"
test_packages="$test_packages etcd-server"
nightly_packages="spin"
# For `make check-rdma`; the kernel that it boots is fetched and not installed.
rdma_packages="qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 ibverbs-utils"
rdma_packages="$rdma_packages ibverbs-providers"
# For perf/compare.
compare_packages="mpich libmpich-dev openmpi-bin libopenmpi-dev libgloo-dev"
compare_packages="$compare_packages python3 python3-matplotlib iproute2"

jobs=$(nproc 2>/dev/null || echo 2)

# build DIRECTORY CONFIGURE-ARGUMENT...: an out-of-tree build of $build_target (all), quiet unless
# it fails; its log is build.log there.
build() {
    directory=$1
    shift
    mkdir -p "$directory"
    if ! (cd "$directory" && "$top/configure" --quiet "$@" &&
        make -s -j"$jobs" "${build_target:-all}") >"$directory/build.log" 2>&1; then
        tail -n 60 "$directory/build.log" >&2
        echo "the build in $directory failed; its log is $directory/build.log" >&2
        return 1
    fi
}
