"""Matrix products in bfloat16 for some seconds; prints the median time of one, in ms by the GPU's
clock."""

import statistics
import time

import torch

N, SECONDS = 8192, 5
a, b = (torch.randn(N, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)
times = []
end = time.monotonic() + SECONDS
for turn in range(1000000):
    begin, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.mm(a, b, out=out)
    done.record()
    done.synchronize()
    if turn >= 5:
        times.append(begin.elapsed_time(done))
    if time.monotonic() > end:
        break
print("median_ms %.4f of %d" % (statistics.median(times), len(times)))
