#!/bin/sh
# Property: the Python package builds from its source distribution against an installation, and
# works as a wheel in a fresh virtual environment. Method: an installation and two environments
# below the build directory, one that builds and one that only has the wheel; pytest in the latter.
# FT_PYTHON: the interpreter (python3). FT_TORCH_PYTHON: one that has torch, cffi, ninja, NumPy and
# pytest, for the tests with tensors; with FT_PYTHON_SUITES it runs those suites of the peers
# instead ("all", or names of tests/python/suites/run.py).
# Ends with "N passed, N failed, N skipped"; 77 where the packages cannot be had.
set -eu
work=$top_builddir/check-python
python=${FT_PYTHON:-python3}
suites=${FT_PYTHON_SUITES:-no}
skip() { echo "skipped: $1"; exit 77; }
[ "$suites" = no ] || [ -n "${FT_TORCH_PYTHON:-}" ] ||
    skip "FT_TORCH_PYTHON does not name a Python with torch"
case ${FT_SANITIZER:-} in
?*) skip "the library of a sanitizer's build cannot be loaded by Python" ;;
esac
command -v "$python" >/dev/null 2>&1 || skip "no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "$python is older than 3.9"
rm -rf "$work"
mkdir -p "$work"
for name in build test; do
    "$python" -m venv "$work/$name" >"$work/venv.log" 2>&1 ||
        skip "$python cannot make a virtual environment: $(tail -n 1 "$work/venv.log")"
done
pip() {
    timeout 300 "$work/$1/bin/python" -m pip --disable-pip-version-check -q install --retries 1 \
        $2 >"$work/pip.log" 2>&1
}
pip build 'build setuptools>=64 wheel cffi' ||
    skip "pip cannot get cffi: $(tail -n 1 "$work/pip.log")"
pip test 'cffi numpy pytest' || skip "pip cannot get pytest: $(tail -n 1 "$work/pip.log")"
pip test ml_dtypes || echo "no ml_dtypes: its types are not tried with NumPy"
prefix=$work/prefix
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$top_builddir" install with_python=no \
    prefix="$prefix" exec_prefix="$prefix" libdir="$prefix/lib" includedir="$prefix/include" \
    bindir="$prefix/bin" mandir="$prefix/share/man" pkgconfigdir="$prefix/lib/pkgconfig" \
    cmakedir="$prefix/lib/cmake/ftccl" DESTDIR= >"$work/install.log" 2>&1 ||
    { tail "$work/install.log"; echo "make install failed"; exit 1; }
# A copy: the build writes into its folder.
mkdir "$work/source"
(cd "$top_srcdir/python" &&
    tar cf - --exclude=build --exclude=dist --exclude='*.egg-info' --exclude=__pycache__ .) |
    (cd "$work/source" && tar xf -)
chmod -R u+w "$work/source"
packs() {
    "$work/build/bin/python" -m "$@" >"$work/wheel.log" 2>&1 ||
        { tail "$work/wheel.log"; echo "python -m $* failed"; exit 1; }
}
packs build --sdist --no-isolation --outdir "$work/dist" "$work/source"
FTCCL_PREFIX=$prefix packs pip wheel -q --no-deps --no-build-isolation -w "$work/dist" \
    "$work"/dist/ftccl-*.tar.gz
ls "$work"/dist/ftccl-*-abi3-*.whl >/dev/null ||
    { echo "no wheel for every Python in $(ls "$work/dist")"; exit 1; }
pip test "--no-deps $(ls "$work"/dist/ftccl-*.whl)" ||
    { tail "$work/pip.log"; echo "the wheel cannot be installed"; exit 1; }
status=0
# library COMMAND...: the library's path must come from the wheel alone.
library() {
    (cd "$work" && env -u LD_LIBRARY_PATH -u FTCCL_PREFIX PATH="$prefix/bin:$PATH" \
        PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig" FT_PYTHON_PREFIX="$prefix" \
        FT_PYTHON_SOURCE="$work/source" PYTHONDONTWRITEBYTECODE=1 "$@")
}
# counts COMMAND...: shows what it says but for its last line, which is kept.
counts() {
    library "$@" >"$work/tests.log" 2>&1 || status=1
    sed '$d' "$work/tests.log"
    tail -n 1 "$work/tests.log" |
        grep -x '[0-9]* passed, [0-9]* failed, [0-9]* skipped' >>"$work/counts" ||
        { tail -n 1 "$work/tests.log"; echo "0 passed, 1 failed, 0 skipped" >>"$work/counts"; }
}
tests=$(cd "$top_srcdir/tests/python" && pwd)
pytest="-m pytest -q -ra -p no:cacheprovider $tests"
[ "$suites" != no ] || counts timeout -k 5 900 "$work/test/bin/python" $pytest
if [ -n "${FT_TORCH_PYTHON:-}" ]; then
    "$work/test/bin/python" -m pip --disable-pip-version-check -q install --no-deps \
        --target "$work/only" "$work"/dist/ftccl-*.whl
    export PYTHONPATH="$work/only"
    # With FTCCL_PREFIX: the backend is built when it is needed first, and needs the header.
    case $suites in
    no) counts env FTCCL_PREFIX="$prefix" timeout -k 5 900 "$FT_TORCH_PYTHON" $pytest -k torch ;;
    all) counts env FTCCL_PREFIX="$prefix" timeout -k 5 3600 \
        "$FT_TORCH_PYTHON" "$tests/suites/run.py" ;;
    *) counts env FTCCL_PREFIX="$prefix" timeout -k 5 3600 \
        "$FT_TORCH_PYTHON" "$tests/suites/run.py" $suites ;;
    esac
fi
awk '{p += $1; f += $3; s += $5} END {printf "%d passed, %d failed, %d skipped\n", p, f, s}' \
    "$work/counts"
exit $status
