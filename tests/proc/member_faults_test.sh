#!/bin/sh
# Runs member_faults.py, whose first lines say what it shows.
command -v python3 >/dev/null 2>&1 || { echo "SKIP: no python3"; exit 77; }
source=${top_srcdir:-.}
cd "${top_builddir:-.}" || exit 99
[ -x ./examples/replicas ] || { echo 'SKIP: examples/replicas was not built'; exit 77; }
[ -x ./tools/ftccld ] || { echo 'SKIP: ftccld was not built'; exit 77; }
exec python3 "$source/tests/proc/member_faults.py" "$@"
