#!/bin/sh
# Property: ftccl-info answers each option, refuses wrong ones with status 2, and the manual page
# lists the library's parameters. Method: runs it; compares the page with what it prints.
root=${top_srcdir:-.}
info=${top_builddir:-.}/tools/ftccl-info
# The plug-ins that libfabric and hwloc load forget memory; under a sanitizer that would end every
# call with an error.
export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
status=0
# expect STATUS PATTERN ARGUMENT...
expect() {
    want=$1 pattern=$2
    shift 2
    text=$(FTCCL_SECRET=0123456789abcdef-hidden "$info" "$@" 2>&1)
    got=$?
    [ $got -eq "$want" ] ||
        { echo "ftccl-info $*: status $got, not $want"; echo "$text"; status=1; }
    echo "$text" | grep -q -e "$pattern" ||
        { echo "ftccl-info $*: no line with '$pattern' in:"; echo "$text"; status=1; }
    case $text in *hidden*) echo "ftccl-info $*: prints the secret"; status=1 ;; esac
}
expect 0 '^ftccl [0-9]'
expect 0 'FTCCL_SECRET=(set)'
expect 0 'optional libraries:' -v
expect 0 '^devices:' --devices
expect 0 '^transports:' --transports
expect 0 '^transport shm: joins processes of one host, reads in the sender.s memory' --transports
expect 0 '^transport tcp: joins hosts of a network$' --transports
export FTCCL_NET_PLUGIN=/no/such/plugin.so
expect 0 '^  no network plugin: /no/such/plugin.so: cannot open' --transports
unset FTCCL_NET_PLUGIN
expect 0 '^topology' -T
expect 0 '^FTCCL_CHUNK_BYTES=131072' -p
expect 0 '^.B FTCCL_CHUNK_BYTES' -p --man
expect 0 'usage:' --help
expect 0 '4 ranks on 2 hosts' --plan all-reduce --size 8M --ranks 4 --hosts 2
expect 0 'float16' --plan AllGather --size 1k --ranks 3 --type float16 --rank 2
expect 0 '' --plan broadcast --size 0
expect 2 'nosuch' --plan nosuch
expect 2 'nosuch' --plan reduce --type nosuch
expect 2 'rank 2' --plan reduce --ranks 2 --rank 2
expect 2 'hosts' --plan reduce --ranks 2 --hosts 3
expect 2 'from 1 to' --plan reduce --ranks 0
expect 2 'size' --size 12Q
expect 2 'size' --size 999999999999T
expect 2 'unexpected argument' -p extra
expect 2 'help' --nosuch
expect 1 'no telemetry of process 1 ' --pid 1
expect 0 '^  anonymous  *[1-9]' --memory $$
expect 0 '^  links  *0  0 of' --memory $$
expect 1 'no process 2147483647' --memory 2147483647
expect 0 'no router between; ports 6[1-5][0-9]* 6[1-5]' --paths 127.0.0.1 --ports 7
expect 0 ' 127.0.0.1:9: 7 of 7 ports in 1 classes' --paths 127.0.0.1:9 --ports 7 --from 127.0.0.1
expect 1 'cannot find' --paths no.such.host.invalid
expect 1 'is not an address' --paths 127.0.0.1:0
expect 1 'no IPv6 address, but the address to start' --paths 127.0.0.1 --from ::1
expect 1 'cannot probe from 192.0.2.1' --paths 127.0.0.1 --from 192.0.2.1
expect 2 'no IP address' --paths 127.0.0.1 --from here
expect 2 'from 1 to 4096' --paths 127.0.0.1 --ports 0
# The table comes from Python: integers, for the largest four numbers with 60 decimal digits, by
# adding C(n,k) p^k (1-p)^(n-k) from k = 0 on until it is 0.99.
while read -r n p want; do
    expect 0 "^standbys: $want\$" --standbys "$n" "$p"
done <<'TABLE'
1 0 0
1 0.01 0
1 0.011 1
2 0.5 2
8 1 8
10 0.1 4
16 0.9 16
100 0.01 4
128 0.001 1
256 0.25 80
600 0.002 4
1024 0.0005 3
1024 0.001 4
1024 0.01 18
2000 0.5 1052
4096 0.0001 2
9600 0.003 42
20000 0.999 19990
100000 0.00001 4
100000 0.3 30337
1000000 0.000001 4
1000000 0.001 1074
1000000 0.5 501163
1000000 0.9 900697
TABLE
expect 2 'from 1 to 1000000, not .0.' --standbys 0 0.1
expect 2 'from 1 to 1000000, not .many.' --standbys many 0.1
expect 2 'two numbers' --standbys 10
for p in 1.5 -0.1 nan x ''; do
    expect 2 "probability from 0 to 1, not '$p'" --standbys 10 "$p"
done
# A communicator of one machine reads what is only moved in its sender's memory; where it may not,
# reading costs a copy more.
direct_us() {
    FTCCL_CMA=$1 FTCCL_CMA_SLOW=$2 "$info" --plan broadcast --size 1M --ranks 4 |
        awk '$1 == "direct" || $2 == "direct" { print $(NF - 1); exit }'
}
if [ "$(id -u)" -eq 0 ]; then
    awk "BEGIN { exit !($(direct_us 1 0) < $(direct_us 1 1) &&
        $(direct_us 1 0) < $(direct_us 0 0)) }" || {
        echo "ftccl-info --plan: direct takes $(direct_us 1 0) us," \
            "with FTCCL_CMA_SLOW=1 $(direct_us 1 1), with FTCCL_CMA=0 $(direct_us 0 0)"
        status=1
    }
    expect 0 'process_vm_readv: works in this process.*GB/s where memcpy moves' --transports
fi
# print STATUS: what an option prints, with the shell's stdout, has that status
print() {
    "$info" "$2" 2>/dev/null
    got=$?
    [ $got -eq "$1" ] ||
        { echo "ftccl-info $2 without a place to write: status $got, not $1" >&2; status=1; }
}
for option in -p -v --help; do
    [ ! -w /dev/full ] || print 1 $option >/dev/full
    print 1 $option >&-
done
"$root/scripts/gen-man-params" --check "$info" || status=1
exit $status
