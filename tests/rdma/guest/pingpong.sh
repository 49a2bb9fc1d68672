# Property: the two pairs of devices carry messages of reliable connections in both directions.
# Method: the ping-pong of libibverbs' own examples between the ends of each pair.
if ! command -v ibv_rc_pingpong >/dev/null; then
    echo "SKIP: there is no ibv_rc_pingpong"
    exit 77
fi
pair() { # ONE OTHER ADDRESS PORT
    timeout 30 ibv_rc_pingpong -d "$1" -g 1 -n 100 -p "$4" >/tmp/server.$1 2>&1 &
    server=$!
    tries=0
    until timeout 30 ibv_rc_pingpong -d "$2" -g 1 -n 100 -p "$4" "$3" >/tmp/client.$1 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { cat /tmp/client.$1; return 1; }
        sleep 0.1
    done
    wait $server || { cat /tmp/server.$1; return 1; }
    tail -n 1 /tmp/client.$1
}
pair rxe0 rxe1 10.77.0.1 18515 && pair rxe2 rxe3 10.78.0.1 18516
