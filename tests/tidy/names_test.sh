#!/bin/sh
# Property: no comment, and no page for users or engineers, names a file or a function that does not
# exist. Method: words that look like one are looked up among the paths of the tree and the words of
# its code (tests/tidy/names.py).
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
exec python3 "$(dirname "$0")/names.py" "${top_srcdir:-.}"
