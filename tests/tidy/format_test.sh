#!/bin/sh
# Property: every C and C++ file is laid out as .clang-format says, so width and style are the same
# everywhere. Method: clang-format 14 (Debian 12's) compares each file with its own output; other
# versions differ in small things.
root=${top_srcdir:-.}
cd "$root" || exit 1
case $(clang-format --version 2>/dev/null) in
*"version 14."*) ;;
*) echo "SKIP: clang-format 14 is not installed"; exit 77 ;;
esac
find src tools perf tests examples include -name '*.c' -o -name '*.h' -o -name '*.cc' \
    -o -name '*.cu' |
    xargs clang-format --dry-run --Werror
