#!/bin/sh
# Properties: the environment is read in one file; the library never prints on stdout, never exits,
# never installs a signal handler; variables that programs here look at are known to it; no
# reminders are left in the code. Method: greps.
root=${top_srcdir:-.}
cd "$root" || exit 1
status=0
# none WHAT PATTERN FILE...: complains about lines that match; comments are not looked at.
none() {
    what=$1 pattern=$2
    shift 2
    hits=$(awk -v pattern="$pattern" '
        {line = $0; gsub(/"([^"\\]|\\.)*"/, "\"\"", line)}
        {sub(/\/\/.*/, "", line); gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)}
        open {if (index(line, "*/")) {sub(/.*\*\//, "", line); open = 0} else next}
        {i = index(line, "/*"); if (i) {line = substr(line, 1, i - 1); open = 1}}
        FNR == 1 {open = i ? open : 0}
        (" " line) ~ pattern {print FILENAME ":" FNR ": " $0}' "$@")
    [ -z "$hits" ] && return
    echo "$what:"
    echo "$hits"
    status=1
}
library=$(find src -name '*.[ch]' | sort)
# shellcheck disable=SC2086 # lists of files without spaces
{
    none "getenv outside base/params.c" "[^A-Za-z_](secure_)?getenv *[(]" \
        $(echo "$library" | grep -v '^src/base/params.c$')
    none "the library prints on stdout" \
        "[^A-Za-z_](printf|puts|putchar|vprintf) *[(]|[^A-Za-z_]stdout[^A-Za-z_]" $library
    none "the library ends the process" "[^A-Za-z_>.](exit|_exit|abort|quick_exit) *[(]" $library
    none "the library installs a signal handler" "[^A-Za-z_](signal|sigaction) *[(][A-Z]" $library
    none "an unbounded or unsafe call" \
        "[^A-Za-z_](strcpy|strcat|sprintf|vsprintf|gets|alloca) *[(]" $library
}
# What a program here asks the environment for must not be told of as unknown; of_programs in
# params.c names what is no parameter.
asked=$(grep -rhoE '(get|set)env\("FTCCL_[A-Z0-9_]+"' tools perf tests examples \
    --include='*.[ch]' --include='*.cc' | cut -d'"' -f2 | sort -u)
for name in $asked; do
    grep -qF "\"$name\"" src/base/params.h src/base/params.c ||
        { echo "$name is a variable that src/base/params.c does not know"; status=1; }
done
sources=$(find src tools perf tests examples include scripts -type f \( -name '*.[ch]' \
    -o -name '*.cc' -o -name '*.cpp' -o -name '*.py' -o -name '*.sh' -o -path 'scripts/*' \) \
    ! -name words_test.sh | sort)
# shellcheck disable=SC2086
if grep -nE '(^|[^A-Za-z])(XXX|FIXME|TODO|HACK)([^A-Za-z]|$)' $sources; then
    echo "reminders belong into docs/, with an owner"
    status=1
fi
exit $status
