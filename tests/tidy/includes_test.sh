#!/bin/sh
# Property: a folder of src/ includes of another folder only folder/folder.h, and only from folders
# that the layers allow. Method: greps the #include lines of src/, tools/ and perf/. base's own
# sub-headers are part of base.h and may be named.
root=${top_srcdir:-.}
allowed_for() {
    case $1 in
    base) echo "" ;;
    algo) echo "base" ;;
    diagnose) echo "base" ;;
    telemetry) echo "base diagnose" ;;
    transport | device) echo "base telemetry" ;;
    membership | path) echo "base transport telemetry" ;;
    ras) echo "base transport telemetry diagnose" ;;
    core) echo "base algo membership transport device path telemetry ras" ;;
    state) echo "base core" ;;
    api) echo "base core" ;;
    nccl) echo "base api" ;;
    *) echo "unknown" ;;
    esac
}
status=0
complain() { echo "$1"; status=1; }
for folder in "$root"/src/*/; do
    name=$(basename "$folder")
    allowed=$(allowed_for "$name")
    [ "$allowed" != unknown ] ||
        complain "src/$name: this folder is not among the layers; add it to $0"
    includes=$(find "$folder" -name '*.[ch]' -exec grep -HnE '^ *# *include *"' {} +) || continue
    echo "$includes" >"${TMPDIR:-/tmp}/ft-includes.$$"
    while IFS= read -r line; do
        place=${line%%:#*}
        header=$(echo "$line" | sed 's/^[^"]*"\([^"]*\)".*/\1/')
        case $header in
        ftccl.h)
            case $name in
            api | nccl | core) ;;
            *) complain "$place: includes the public header" ;;
            esac
            continue ;;
        config.h) continue ;;
        */*) ;;
        *) continue ;; # a sibling
        esac
        other=${header%%/*}
        [ "$other" != "$name" ] || continue
        [ -d "$root/src/$other" ] || continue # a folder inside its own
        case " $allowed " in
        *" $other "*) ;;
        *) complain "$place: src/$name may not depend on $header" ;;
        esac
        [ "$other" = base ] || [ "$header" = "$other/$other.h" ] ||
            complain "$place: $header is internal to src/$other"
    done <"${TMPDIR:-/tmp}/ft-includes.$$"
    rm -f "${TMPDIR:-/tmp}/ft-includes.$$"
done
# What users can write must be enough for the programs that measure the library;
# perf/telemetry_cost, perf/kernels, perf/gpu_kernels and perf/allocate measure parts of it, and
# perf/paths reads telemetry.
folders='base|algo|core|api|transport|device|membership|telemetry|diagnose|path|state'
bad=$(grep -nE "^ *# *include *\"($folders)/" \
    "$root"/perf/*.[ch] "$root"/examples/*.[ch] 2>/dev/null |
    grep -vE '/perf/(telemetry_cost|kernels|gpu_kernels|allocate|paths)\.c:') &&
    complain "$bad: only ftccl.h is for programs"
exit $status
