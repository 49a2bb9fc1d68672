#!/bin/sh
# Property: calls and includes between the floors of src/core go down only: group, run, engine; what
# lies in src/core itself is above them. No more files than this call each other in a cycle. Method:
# tests/tidy/measure finds who calls and includes whom, also through other headers, and prints the
# largest cycle.
most=4
root=${top_srcdir:-.}
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
exec "$(dirname "$0")/measure" --floors "$root" "$most"
