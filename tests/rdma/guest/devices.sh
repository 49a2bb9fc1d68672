# Sourced by jobs. Two pairs of soft-RoCE devices: rxe0 and rxe1 at the ends of one virtual cable,
# rxe2 and rxe3 at those of another. Packets between them cross it, although both ends are in one
# machine: each end answers for its own address only.
rig_devices="rxe0 rxe1 rxe2 rxe3"
make_pair() { # NUMBER OF THE FIRST END, ITS FIRST THREE BYTES OF THE ADDRESS
    ip link add "cable$1" type veth peer name "cable$(($1 + 1))"
    for end in "$1" "$(($1 + 1))"; do
        for setting in rp_filter=0 accept_local=1 arp_ignore=1 arp_announce=2; do
            sysctl -qw "net.ipv4.conf.cable$end.$setting"
        done
        ip link set "cable$end" mtu 4200 up
        ip addr add "$2.$(($end - $1 + 1))/24" dev "cable$end"
        rdma link add "rxe$end" type rxe netdev "cable$end"
    done
}
make_devices() {
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.all.accept_local=1 \
        net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    make_pair 0 10.77.0
    make_pair 2 10.78.0
    for device in $rig_devices; do
        [ -d "/sys/class/infiniband/$device" ] || { echo "there is no device $device"; return 1; }
    done
}
# Packets that a device has sent since it was made.
sent_by() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }
sent_by_all() { for device in $rig_devices; do printf '%s ' "$(sent_by "$device")"; done; }
# After a test that was killed: cables are plugged in, empty and have their one address.
mend_devices() {
    for end in 0 1 2 3; do
        address=10.$((77 + end / 2)).0.$((end % 2 + 1))/24
        tc qdisc del dev "cable$end" root 2>/dev/null
        ip link set "cable$end" up
        [ "$(ip -4 -o addr show dev "cable$end" | awk '{print $4}')" = "$address" ] || {
            ip -4 addr flush dev "cable$end"
            ip addr add "$address" dev "cable$end"
        }
    done
}
