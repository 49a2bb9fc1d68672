# Sourced by the tests of one part each: tests/gpu/run --dry-run of that part ends well, and no
# check of it failed. A part of which nothing can be tried without a GPU is skipped, with its own
# sentence. A plain dry run counts its checks as cases.
command -v python3 >/dev/null 2>&1 || { echo "no python3"; exit 77; }
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for loading"; exit 77 ;; esac
out=$(mktemp -d) || exit 99
trap 'rm -rf "$out"' EXIT
python3 "$top_srcdir/tests/gpu/run" --dry-run --parts "$part" --build "$top_builddir" --out "$out"
status=$?
[ $status = 0 ] || { tail -n 30 "$out"/log/*; exit $status; }
grep -q ",passed," "$out/checks.csv" || exit 77
echo "$(grep -c ',passed,' "$out/checks.csv") 0 $(grep -c ',skipped,' "$out/checks.csv")" \
    >"${FT_RESULTS:-$out}/${FT_TEST_NAME:-dry}.count"
