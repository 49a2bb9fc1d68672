#!/bin/sh
# Properties of perf/compare: it measures every library that is installed, with a time in every cell
# (or that it was too slow on a busy machine); what stands in its file is not measured again; the
# file's table can be shown again, and drawn when asked for; interrupted, it leaves its file and no
# process; programs that measure say when what they print does not arrive. Method: one tiny case of
# --quick with one round; the same command again; a signal while it works; a full disk. Without the
# others only FTCCL is measured.
command -v python3 >/dev/null 2>&1 || { echo "no python3"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
TMPDIR=$dir
export TMPDIR
compare=$top_srcdir/perf/compare
options='--build . --quick --sizes 64 --rounds 1 --run-seconds 20 --cell-seconds 600 --minutes 60'
fail() {
    echo "FAIL: $*"
    cat "$dir/out"
    exit 1
}

# What it prints does not arrive. argparse swallows errors of an output without a buffer.
unset PYTHONUNBUFFERED
for program in compare tune scaling healthy_cost registered false_suspicions; do
    if [ -w /dev/full ]; then
        "$top_srcdir/perf/$program" --help 2>"$dir/out" >/dev/full
        [ "$? $(grep -c "^$program: cannot write" "$dir/out")" = '1 1' ] ||
            fail "disk full: $program"
    fi
    "$top_srcdir/perf/$program" --help 2>"$dir/out" >&-
    [ "$? $(grep -c "^$program: cannot write" "$dir/out")" = '1 1' ] ||
        fail "stdout closed: $program"
done
if [ -w /dev/full ]; then
    perf/recovery kill -n 2 -k 1 2>"$dir/out" >/dev/full
    [ "$? $(grep -c '^recovery: cannot write' "$dir/out")" = '1 1' ] || fail 'disk full: recovery'
fi

# shellcheck disable=SC2086 # a list of words
"$compare" $options --transports tcp --output "$dir/a.json" >"$dir/out" 2>&1 || fail 'status not 0'
grep -q '^all_reduce  *2  *64 B  *tcp ' "$dir/out" || fail 'no line in the table'
python3 - "$dir/a.json" <<'END' || fail 'the file is not as expected'
import json, os, shutil, sys
d = json.load(open(sys.argv[1]))
row, = d["rows"]
for who, modes in row["libraries"].items():
    for mode, cell in modes.items():
        slow = who != "ftccl" and cell["status"] == "too slow"
        assert slow or cell["status"] == "ok" and 0 < cell["times_s"][0] < 20, (who, mode, cell)
expected = ["ftccl"] + [m for m in ("mpich", "openmpi")
                        if shutil.which("mpicc." + m) and shutil.which("mpiexec." + m)]
assert [who for who in row["libraries"] if who != "gloo"] == expected, row["libraries"].keys()
gloo = os.path.exists("/usr/include/gloo/context.h")
assert ("gloo" in row["libraries"]) == gloo, row["libraries"].keys()
assert row["limit_s"] > 0 and d["machine"]["cores"] > 0 and len(d["sessions"]) == 1, d
END
grep '^all_reduce' "$dir/out" >"$dir/line"
"$compare" --show "$dir/a.json" >"$dir/out" 2>&1 || fail 'not shown again'
grep '^all_reduce' "$dir/out" | diff "$dir/line" - || fail 'shown otherwise than printed'
# Pictures are drawn when asked for, and only then.
[ -z "$(ls "$dir"/*.svg 2>/dev/null)" ] || fail 'a picture that nobody asked for'
if "$compare" --draw "$dir/a.json" >"$dir/out" 2>&1; then
    grep -q '<svg' "$dir/a-tcp.svg" || fail 'no picture'
else
    grep -q '^not drawn: no matplotlib' "$dir/out" || fail 'not drawn'
fi

rows() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rows"])' "$1"; }
rows "$dir/a.json" >"$dir/before"
# shellcheck disable=SC2086
"$compare" $options --transports tcp --libraries ftccl --output "$dir/a.json" >"$dir/out" 2>&1 ||
    fail 'second run: status not 0'
rows "$dir/a.json" | cmp -s - "$dir/before" || fail 'what was there was measured again'

# Eight cases; the signal comes when the first one stands in the file.
# shellcheck disable=SC2086
"$compare" $options --collectives all_reduce,all_gather,broadcast,alltoall --libraries ftccl \
    --output "$dir/c.json" >"$dir/out" 2>&1 &
driver=$!
while kill -0 "$driver" 2>/dev/null && [ ! -s "$dir/c.json" ]; do sleep 0.05; done
kill -TERM "$driver" 2>/dev/null || fail 'it ended before it could be interrupted'
wait "$driver"
grep -q '^# interrupted' "$dir/out" || fail 'not interrupted'
python3 -c 'import json, sys; d = json.load(open(sys.argv[1]))
assert 1 <= len(d["rows"]) < 8 and "end" in d["sessions"][0], d' \
    "$dir/c.json" || fail 'the interrupted file is not as expected'
! pgrep -f "$dir/compare\." || fail 'processes are left'
[ -z "$(ls -d "$dir"/*/ 2>/dev/null)" ] || fail 'a folder is left'
