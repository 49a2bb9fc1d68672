#!/bin/sh
# Properties: what was measured is kept as compact text: no pictures in the tree, JSON with a line
# for each record, and the README of perf/results names every file there; no document names a file
# of perf/results that does not exist. Method: lists of files; each JSON file beside what
# perf/measuring/results.py makes of it; names found by grep.
root=${top_srcdir:-.}
cd "$root" || exit 1
[ -d perf/results ] || { echo "SKIP: the results are not part of a released archive"; exit 77; }
command -v python3 >/dev/null 2>&1 || { echo "SKIP: no python3"; exit 77; }
status=0
complain() { echo "$1"; status=1; }
for file in $(git ls-files 2>/dev/null | grep -E '\.(svg|png|jpe?g|gif|pdf)$'); do
    complain "$file: a picture; it is drawn when asked for (perf/compare --draw)"
done
for path in perf/results/*; do
    file=$(basename "$path")
    case $file in README.md | *.svg) continue ;; esac
    grep -qF "($file)" perf/results/README.md ||
        complain "$path: perf/results/README.md does not name it"
done
for file in $(grep -oE '\]\([a-z0-9.-]+\)' perf/results/README.md | tr -d '])('); do
    [ -e "perf/results/$file" ] || complain "perf/results/README.md: there is no $file"
done
named=$(grep -ohE 'perf/results/[A-Za-z0-9._-]*[A-Za-z0-9]' README.md docs/*.md \
    docs/decisions/*.md man/* | sort -u)
for name in $named; do
    [ -e "$name" ] || complain "a document names $name, which does not exist"
done
python3 - perf/results/*.json <<'END' || status=1
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, "perf")
from measuring import results
# scripts/status has a form of its own
paths = [path for path in sys.argv[1:] if "/status-" not in path]
bad = [path for path in paths
       if open(path).read() != results.text_of(results.rounded(results.load(path))) + "\n"]
for path in bad:
    print("%s: not in the form that perf/measuring/results.py writes" % path)
sys.exit(1 if bad else 0)
END
exit $status
