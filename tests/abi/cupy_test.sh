#!/bin/sh
# Property: a library that others have written and compiled against NCCL runs on ours, unchanged.
# Method: CuPy, whose cupy.cuda.nccl takes addresses, reduces arrays of NumPy under LD_PRELOAD.
# FT_PYTHON: a Python with a cupy-cuda wheel, which needs no GPU.
case ${FT_SANITIZER:-} in ?*) echo "the sanitizers' build is not for loading"; exit 77 ;; esac
python=${FT_PYTHON:-python3}
ours=$top_builddir/src/.libs/libnccl.so.2
LD_LIBRARY_PATH=${NCCL_LIBRARY:+$(dirname "$NCCL_LIBRARY"):}${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH
LD_PRELOAD=$ours "$python" -W ignore -c 'import numpy, cupy.cuda.nccl as n; n.get_version()' \
    >/dev/null 2>&1 ||
    { echo "$python has no NumPy and CuPy (FT_PYTHON names one that has)"; exit 77; }
got=$(LD_PRELOAD=$ours timeout 120 "$python" -W ignore - <<'END'
import ctypes, os, threading
import numpy as np
import cupy.cuda.nccl as nccl

ftccl = ctypes.CDLL("libftccl.so.0", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
ftccl.ftcclStreamSynchronize.argtypes = [ctypes.c_void_p]
unique_id, sums = nccl.get_unique_id(), [None] * 3

def rank(r):
    comm = nccl.NcclCommunicator(3, unique_id, r)
    data = np.arange(1000, dtype=np.float32) * (r + 1)
    out = np.zeros_like(data)
    comm.allReduce(data.ctypes.data, out.ctypes.data, out.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    assert ftccl.ftcclStreamSynchronize(None) == 0
    assert (comm.rank_id(), comm.size()) == (r, 3)
    sums[r] = bool((out == np.arange(1000) * 6).all())
    comm.destroy()

threads = [threading.Thread(target=rank, args=(r,)) for r in range(3)]
for t in threads: t.start()
for t in threads: t.join()
try:
    nccl.NcclCommunicator(2, unique_id, 5)
    wrong = "accepted"
except nccl.NcclError as error:
    wrong = error.status
print(nccl.get_version(), *sums, wrong)
END
)
[ "$got" = "22606 True True True 4" ] || { echo "CuPy printed: $got"; exit 1; }
