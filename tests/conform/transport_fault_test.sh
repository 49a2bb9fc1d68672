#!/bin/sh
# Property: a transport that is decorated by the fault transport keeps the contract of transports,
# undisturbed and when messages are kept back. Method: the conformance suite again with FTCCL_FAULT
# set.
dir=${top_builddir:-.}/tests/conform
[ -x "$dir/transport_data_test" ] || { echo "skipped: built without googletest"; exit 77; }
status=0
run() {
    echo "FTCCL_FAULT=$1 transport_$2_test"
    FTCCL_FAULT=$1 "$dir/transport_$2_test" --gtest_brief=1 || status=1
}
slow=seed=7,delay_us=30,stall_ppm=5000,stall_us=500
run seed=1 data
run seed=1 fail
run $slow data
run $slow sleep
exit $status
