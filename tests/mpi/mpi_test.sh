#!/bin/sh
# The MPI suite and the perf programs, started by MPICH's mpiexec; see mpi_main.c. Skipped without
# an MPI.
suite=$top_builddir/tests/mpi/mpi_suite
[ -x "$suite" ] || { echo "built without MPI"; exit 77; }
[ -n "${MPIEXEC:-}" ] || { echo "no mpiexec"; exit 77; }
log=$FT_RESULTS/$FT_TEST_NAME.log
status=0
"$MPIEXEC" -n "${FT_MPI_RANKS:-8}" "$suite" ${FT_SEED:+"$FT_SEED"} >"$log" 2>&1 || status=1
cat "$log"
counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log" |
    tail -1)
[ -n "$counts" ] || { counts="$(grep -c '^ok ' "$log") 1 0"; status=1; }
for program in all_reduce_perf all_gather_perf sendrecv_perf; do
    [ -x "$top_builddir/perf/$program" ] || continue
    # shellcheck disable=SC2086 # three numbers
    set -- $counts
    if "$MPIEXEC" -n 2 "$top_builddir/perf/$program" -b 8 -e 64K -f 8 -n 5 -w 1 >"$log" 2>&1; then
        counts="$(($1 + 1)) $2 $3"
    else
        echo "$program failed under mpiexec:"
        tail -n 20 "$log"
        counts="$1 $(($2 + 1)) $3"
        status=1
    fi
done
echo "$counts" >"$FT_RESULTS/$FT_TEST_NAME.count"
exit $status
