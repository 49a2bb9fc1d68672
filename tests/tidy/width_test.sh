#!/bin/sh
# Property: no line of code is wider than 100 columns: C, C++, Python, shell, the build's files, the
# models, and whatever begins with #!. Method: the characters of each line of these files, as
# tests/tidy/source.py lists them, are counted, a tab up to the next multiple of 8; what configure
# and libtool have written is left out.
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
exec python3 - "$(dirname "$0")" "${top_srcdir:-.}" <<'END'
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import source

FOLDERS = r"(src|tools|perf|tests|examples|include|scripts|python|\.ci)/|[^/]*$"
CODE = r".*\.(cc?|cpp|cu|hh?|hpp|pyi?|sh|frag|am|ac|in|pml|map)$"


def is_code(path, text):
    generated = re.search(r"[Gg]enerated (automatically |from \S+ )?by", text[:1000])
    return (re.match(CODE, path) or text.startswith("#!")) and not generated


root, status = sys.argv[2], 0
for path in source.tree_files(root):
    if not re.match(FOLDERS, path):
        continue
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        text = file.read()
    for number, line in enumerate(text.split("\n"), 1):
        width = len(line.expandtabs(8))
        if width > 100 and is_code(path, text):
            print(f"{path}:{number}: {width} columns")
            status = 1
sys.exit(status)
END
