#!/bin/sh
# Runs member_faults.py and member_clocks.py, whose first lines say what they show.
command -v python3 >/dev/null 2>&1 || { echo "SKIP: no python3"; exit 77; }
source=${top_srcdir:-.}
cd "${top_builddir:-.}" || exit 99
[ -x ./examples/replicas ] || { echo 'SKIP: examples/replicas was not built'; exit 77; }
[ -x ./tools/ftccld ] || { echo 'SKIP: ftccld was not built'; exit 77; }
python3 "$source/tests/proc/member_faults.py" "$@" || exit
python3 "$source/tests/proc/member_clocks.py"
status=$?
[ $status -eq 77 ] || exit $status # the runs before it are a test without it
