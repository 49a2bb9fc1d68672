#!/bin/sh
# Property: no function has more than 7 parameters (calls of the public interface follow NCCL's). Method: a function is what
# lies between { and } in column 0. exceptions.txt lists, with the reason, what may be larger.
root=${top_srcdir:-.}
cd "$root" || exit 1
status=0
files=$(find src tools perf tests examples include -name '*.c' -o -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.cu' |
    grep -v '^include/ftccl.h$' | sort)
found=$(for file in $files; do
    awk -v file="$file" -v tests="$(case $file in tests/*) echo 1 ;; *) echo 0 ;; esac)" '
        /^[^ \t#\/*}{]/ && !inside {signature = ""}
        !inside && !/^ *\/?\*/ && !/^#/ {signature = signature " " $0}
        /^{/ {inside = 1; start = NR; name = signature; next}
        /^}/ && inside {
            inside = 0
            head = name; sub(/\{.*/, "", head)
            word = head; sub(/ *\(.*/, "", word); sub(/.*[ *]/, "", word)
            if (head ~ /\(/ && head !~ /^ *(struct|enum|union|typedef|static const|const)[^(]*=/) {
                list = head; sub(/[^(]*\(/, "", list); depth = 0; commas = 0
                for (i = 1; i <= length(list); i++) {
                    c = substr(list, i, 1)
                    if (c == "(") depth++
                    else if (c == ")") {if (--depth < 0) break}
                    else if (c == "," && depth == 0) commas++
                }
                if (commas + 1 > 7 && word !~ /^p?n?(ft)?ccl[A-Z]/) print file ":" start ": " word " has " commas + 1 " parameters"
            }
            signature = ""
        }
' "$file"
done)
[ -n "$found" ] || exit 0
echo "$found" >"${TMPDIR:-/tmp}/ft-sizes.$$"
while IFS= read -r line; do
    key=$(echo "$line" | sed -E 's/^([^:]*):([0-9]+:)? ([A-Za-z0-9_]*) .*/\1 \3/')
    grep -qF "$key " tests/tidy/exceptions.txt && continue
    echo "$line"
    status=1
done <"${TMPDIR:-/tmp}/ft-sizes.$$"
rm -f "${TMPDIR:-/tmp}/ft-sizes.$$"
exit $status
