# Sourced by the job `tests`: the tests, in order.
# The rig itself: packets cross both pairs, from every device.
check devices "rxe0:50 rxe1:50 rxe2:50 rxe3:50" 40 sh "$RIG_GUEST/pingpong.sh"
