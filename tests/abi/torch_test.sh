#!/bin/sh
# Property: PyTorch's wheel takes our libnccl.so.2 by LD_PRELOAD, and LD_LIBRARY_PATH does not help.
# Method: it makes a unique id, for which it needs no GPU; ours says its version in the log.
# FT_PYTHON: a Python with PyTorch's wheel for CUDA and NVIDIA's NCCL wheel.
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for loading"; exit 77 ;; esac
python=${FT_PYTHON:-python3}
libraries=$top_builddir/src/.libs
unset LD_PRELOAD LD_LIBRARY_PATH NCCL_DEBUG_FILE
# made NAME=VALUE...: a unique id under this environment; what the log says of FTCCL.
made() {
    env NCCL_DEBUG=VERSION "$@" timeout 240 "$python" -W ignore -c \
        'import torch; print(len(torch.cuda.nccl.unique_id()), "bytes")' 2>&1
}
case $(made A=b) in
*"128 bytes"*) ;;
*) echo "$python has no PyTorch with NCCL (FT_PYTHON names one that has)"; exit 77 ;;
esac
status=0
got=$(made LD_LIBRARY_PATH="$libraries")
case $got in
*FTCCL*) echo "LD_LIBRARY_PATH helps: the documentation says that it does not"; status=1 ;;
esac
got=$(made LD_PRELOAD="$libraries/libnccl.so.2")
case $got in
*"NCCL version 2.26.6 (FTCCL "*"128 bytes"*) ;;
*) echo "under LD_PRELOAD: $got"; status=1 ;;
esac
exit $status
