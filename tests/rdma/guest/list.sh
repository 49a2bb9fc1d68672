# Sourced by the job `tests`: the tests, in order.
# The rig itself: packets cross both pairs, from every device.
check devices "rxe0:50 rxe1:50 rxe2:50 rxe3:50" 40 sh "$RIG_GUEST/pingpong.sh"
if [ -x "$build/tests/rdma/fabric_test" ]; then
    check input none 100 "$build/tests/rdma/input_test"
    check fabric "rxe0:2000 rxe1:2000 rxe2:15 rxe3:5" 250 "$build/tests/rdma/fabric_test"
fi
# Ranks as processes: right results, cables that are lost and come back, ranks that are killed.
[ ! -x "$build/tests/rdma/ranks_test" ] ||
    check ranks "rxe0:500 rxe1:500 rxe2:500 rxe3:500" 250 "$build/tests/rdma/ranks_test"
# The conformance suite of transports: engines in one process, at the two ends of both cables.
FT_CONFORM_PORTS="=rxe0,rxe2 =rxe1,rxe3"
FT_TEST_SLOWDOWN=5
export FT_CONFORM_PORTS FT_TEST_SLOWDOWN
for part in data fail fence sleep trim; do
    program=$build/tests/conform/transport_${part}_test
    [ ! -x "$program" ] ||
        check "conform_$part" "rxe0:20 rxe1:20" 200 "$program" '--gtest_filter=*verbs*-*Thousand*'
done
# A slice of the fault campaign. Ranks with odd numbers are at the other end of both cables. A rank
# that is killed before it has said anything costs 30 s, in which no packet is sent.
program=$build/tests/campaign/campaign
[ ! -x "$program" ] || check campaign "rxe0:200 rxe1:200 rxe2:20 rxe3:20" 140 \
    "$program" --over verbs --brief --large 0 --events 10 --seconds 90
