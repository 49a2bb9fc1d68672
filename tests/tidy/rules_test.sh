#!/bin/sh
# Property: the rules about the tree find what they are for. Method: small trees with one fault
# each, which the rule must name, and none, which it must pass.
here=$(cd "$(dirname "$0")" && pwd) || exit 99
command -v python3 >/dev/null 2>&1 || { echo "SKIP: there is no python3"; exit 77; }
top_srcdir=$(mktemp -d) || exit 99
export top_srcdir
trap 'rm -rf "$top_srcdir"' EXIT
status=0
# expect STATUS PATTERN RULE: the rule's exit status, and a line that it prints
expect() {
    said=$(sh "$here/$3" 2>&1)
    got=$?
    [ $got -eq "$1" ] && echo "$said" | grep -q -e "$2" && return
    echo "$3: status $got, wanted $1 and a line with \"$2\":"
    echo "$said"
    status=1
}
# write FILE: from stdin, into the tree
write() {
    mkdir -p "$(dirname "$top_srcdir/$1")"
    cat >"$top_srcdir/$1"
}
repeat() { awk -v n="$1" -v text="$2" 'BEGIN {for (i = 0; i < n; i++) print text}'; }

for folder in tools perf examples include tests/tidy docs man; do
    mkdir -p "$top_srcdir/$folder"
done
# 9 tokens around 3 for each line: 300 are let pass, 303 are not.
{ echo 'static int f(int x)'; echo '{'; repeat 96 'x++;'; echo 'x;'; echo '}'; } |
    write src/base/long.c
echo '# none' | write tests/tidy/exceptions.txt
expect 0 '' sizes_test.sh
{ echo 'static int f(int x)'; echo '{'; repeat 98 'x++; // no token'; echo '}'; } |
    write src/base/long.c
expect 1 'src/base/long.c:1: f has 303 tokens' sizes_test.sh
echo 'src/base/long.c f it must be' | write tests/tidy/exceptions.txt
expect 0 '' sizes_test.sh
echo 'src/base/long.c f' | write tests/tidy/exceptions.txt
expect 1 'no reason: src/base/long.c f' sizes_test.sh
{ echo 'struct s { int (*call)(int); };'; echo 'int g(int x, int y) {'; repeat 7 \
    'if (x && y) x = "if (a && b)"[0];'; echo 'return x ? 1 : 2; }'; } |
    write src/base/long.c
echo '# none' | write tests/tidy/exceptions.txt
expect 1 'g has a complexity of 16' sizes_test.sh
echo 'int h(int a, int b, int c, int d, int e, int f, int (*g)(int, int), int i) { return 0; }' |
    write src/base/long.c
expect 1 'h has 8 parameters' sizes_test.sh
echo 'int ok(int x) { return x; }' | write src/base/long.c
echo 'src/base/long.c ok it was long' | write tests/tidy/exceptions.txt
expect 1 'src/base/long.c ok needs no exception' sizes_test.sh

echo 'int ft_low(void) { return 0; }' | write src/core/engine/low.c
echo '#include "core/engine/engine.h"
int ft_high(void) { return ft_low(); }' | write src/core/run/high.c
echo 'int ft_low(void);' | write src/core/engine/engine.h
echo 'int ft_high(void);' | write src/core/run/run.h
expect 0 'largest cycle of calls in src/core: 0 of 2' calls_test.sh
echo 'int ft_low(void) { return ft_high(); }' | write src/core/engine/low.c
expect 1 'src/core/engine/low.c: calls ft_high of src/core/run/high.c; src/core/engine may not call src/core/run' \
    calls_test.sh
expect 1 'largest cycle of calls in src/core: 2 of 2 files with functions: engine/low.c run/high.c' \
    calls_test.sh
echo 'static int ft_high(void) { return 0; } int ft_low(void) { return ft_high(); }' |
    write src/core/engine/low.c
expect 0 '0 of 2' calls_test.sh
printf '#include "all.h"\nint ft_low(void) { return 0; }' | write src/core/engine/low.c
echo '#include "core/run/run.h"' | write src/core/engine/all.h
expect 1 'src/core/engine/low.c: includes src/core/run/run.h through src/core/engine/all.h' \
    calls_test.sh

echo '# A page' | write docs/page.md
echo '/* ft_low, ft_high() and run.h, as docs/page.md says of core/run/high.c, pthread_create or /proc/self/maps.c; *.c; ft_x.. */' |
    write src/base/long.c
expect 0 '' names_test.sh
printf '/*\n * see core/low.c */' | write src/base/long.c
expect 1 'src/base/long.c:2: there is no file core/low.c' names_test.sh
echo 'int x; // ft_gone() does it' | write src/base/long.c
expect 1 'src/base/long.c:1: there is no function ft_gone' names_test.sh
echo '// ft_gone does it; ftcclGone too' | write src/base/long.c
expect 1 'there is no function ftcclGone' names_test.sh
printf 'int x;' | write src/base/long.c
echo 'See src/base/short.c.' | write docs/page.md
expect 1 'docs/page.md:1: there is no file src/base/short.c' names_test.sh
exit $status
