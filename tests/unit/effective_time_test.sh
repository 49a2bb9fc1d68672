#!/bin/sh
# Runs effective_time_test.py, whose first lines say what it shows.
command -v python3 >/dev/null 2>&1 || { echo "no python3"; exit 77; }
exec python3 "$top_srcdir/tests/unit/effective_time_test.py"
