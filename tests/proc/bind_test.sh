#!/bin/sh
# shellcheck disable=SC2016
# Property: ftccl-run lets ranks run where --bind says, never outside what it may use itself, and
# they do run there. Method: made-up machines of hwloc's (one of them a container that may use
# processors 2-5, 10 and 11 of two nodes), for which bindings are only told; on this machine, what
# is told beside what the kernel says of the ranks.
run="timeout -k 5 30 ${FTCCL_RUN:-./tools/ftccl-run}"
machines=${srcdir:-.}/tests/proc/machines
failed=0

# expect NAME GOT WANTED
expect() {
    [ "$2" = "$3" ] && return
    printf 'FAIL %s: got "%s", wanted "%s"\n' "$1" "$2" "$3"
    failed=1
}

# told ARGUMENT...: the places, in the ranks' order.
told() {
    $run "$@" --report-bindings 2>&1 |
        sed 's/^ftccl-run: rank [0-9]* //; s/^on processors //' | tr '\n' ' '
}

# places RANKS HOW WANTED: on the machine of HWLOC_SYNTHETIC or HWLOC_XMLFILE; HOW - is the default.
places() {
    if [ "$2" = - ]; then got=$(told -n "$1"); else got=$(told -n "$1" --bind "$2"); fi
    expect "$HWLOC_SYNTHETIC$HWLOC_XMLFILE: $1 ranks, $2" "$got" "$3 "
}

made_up() {
    export HWLOC_THISSYSTEM=0 HWLOC_SYNTHETIC='numa:2 core:4 pu:2' HWLOC_XMLFILE=
    places 2 share '0-7 8-15'
    places 3 share '0-3 4-7 8-15'
    places 5 share '0-1 2-3 4-7 8-11 12-15'
    places 8 - '0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15'
    places 9 - \
        'not bound not bound not bound not bound not bound not bound not bound not bound not bound'
    places 1 - 'not bound'
    places 2 none 'not bound not bound'
    places 3 core '0-1 2-3 4-5'
    places 12 core '0-1 0-1 2-3 4-5 4-5 6-7 8-9 8-9 10-11 12-13 12-13 14-15'
    places 2 numa '0-7 8-15'
    places 9 numa '0-7 0-7 0-7 0-7 0-7 8-15 8-15 8-15 8-15'
    HWLOC_SYNTHETIC='pack:2 numa:2 core:3 pu:1'
    places 2 share '0-5 6-11'
    places 3 share '0-2 3-5 6-11'
    places 3 numa '0-2 3-5 6-8'
    HWLOC_SYNTHETIC='pack:2 core:1 pu:2(indexes=0,2,1,3)'
    places 2 share '0,2 1,3'
    $run -n 2 --bind core true 2>/dev/null
    expect 'ranks are not bound by the description of another machine' $? 2
    expect 'nor where nobody asked' \
        "$($run -n 2 sh -c 'grep Cpus_allowed_list: /proc/self/status' | sort -u)" \
        "$(grep Cpus_allowed_list: /proc/self/status)"
    export HWLOC_SYNTHETIC='' HWLOC_XMLFILE="$machines/container.xml"
    places 2 share '2-5 10-11'
    places 3 share '2-3 4-5 10-11'
    places 4 - 'not bound not bound not bound not bound'
    places 4 core '2-3 2-3 4-5 10-11'
    places 2 numa '2-5 10-11'
    places 4 numa '2-5 2-5 2-5 10-11'
    unset HWLOC_THISSYSTEM HWLOC_SYNTHETIC HWLOC_XMLFILE
}

# Ranks that are told not to be bound have the processors of this shell.
mine=$(awk '/^Cpus_allowed_list:/ {print $2}' /proc/self/status)
really() {
    wanted=$(told "$@" | sed "s/not bound/$mine/g")
    got=$($run "$@" sh -c 'echo "$RANK $(grep Cpus_allowed_list: /proc/self/status)"' | sort -n |
        awk '{printf "%s ", $3}')
    expect "in fact: $*" "$got" "$wanted"
}
really -n 1
really -n 2
really -n 2 --bind core
really -n 5 --bind core
really -n 2 --bind none

last=${mine##*[,-]}
got=$(taskset -c "$last" $run -n 3 --bind core --report-bindings \
    sh -c 'grep Cpus_allowed_list: /proc/self/status' 2>&1 |
    sort | uniq -c | awk '{print $1, $NF}' | tr '\n' ' ')
expect 'not outside what it may use itself' "$got" "3 $last 1 $last 1 $last 1 $last "

if grep -q 'define FT_HAVE_HWLOC' "${top_builddir:-.}/config.h"; then
    made_up
    really -n 2 --bind share
    really -n 2 --bind numa
else
    for how in share numa; do
        $run -n 2 --bind $how true 2>/dev/null
        expect "refused without hwloc: --bind $how" $? 2
    done
    expect 'the default without hwloc' "$(told -n 2)" 'not bound not bound '
fi

exit $failed
