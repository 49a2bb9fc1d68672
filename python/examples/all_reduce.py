"""Sums over the ranks and goes on when one of them dies: ftccl-run -n 4 --kill 2@1 python3
all_reduce.py 3"""

import sys
import time

import numpy

import ftccl

end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 0)
comm = ftccl.init_from_env()
steps, going = 0, True
while going:
    x = numpy.full(1 << 18, comm.rank, "float32")
    x[-1] = time.time() < end if comm.rank == 0 else 0  # rank 0 tells all whether to go on
    try:
        comm.all_reduce(x)  # enqueues, in place
        comm.synchronize()  # waits
        steps, going = steps + 1, bool(x[-1])
    except ftccl.RemoteError as error:
        print("rank %d: %s" % (comm.rank, error))
        old, comm = comm, comm.shrink()  # the live ranks; the step is repeated
        old.destroy()
print("rank %d of %d: %d steps, sum %g" % (comm.rank, comm.size, steps, x[0]))
comm.destroy()
