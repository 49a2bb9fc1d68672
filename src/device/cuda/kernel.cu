/*
 * The kernel: one for each group of calls on a communicator. It executes commands from a ring in host-pinned memory until it is told that
 * the group is over, and so holds its stream as long as the group lasts. Its blocks do not wait for each other.
 */
#include "pass.h"

#define THREADS 512

struct Device {
    static __device__ __forceinline__ uint64_t load(const uint64_t *from)
    {
        uint64_t x;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
        return x;
    }
    static __device__ __forceinline__ void store(uint64_t *to, uint64_t x)
    {
        asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(to), "l"(x) : "memory");
    }
    static __device__ __forceinline__ uint64_t now_ns()
    {
        uint64_t x;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
        return x;
    }
    static __device__ __forceinline__ void pause() { __nanosleep(100); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) ft_cuda_kernel(ft_cuda_control *control, uint64_t run, uint64_t bound_ns)
{
    __shared__ ft_cuda_command command;
    __shared__ int said;
    ft_cuda_block *mine = &control->block[blockIdx.x];
    uint64_t done = Device::load(&mine->done);
    uint64_t unit = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, units = (uint64_t)gridDim.x * blockDim.x;
    if (threadIdx.x == 0) Device::store(&mine->started, run);
    for (;;) {
        if (threadIdx.x == 0) said = ft::wait_command<Device>(control, run, done, bound_ns);
        __syncthreads();
        if (said <= 0) break;
        if (threadIdx.x < sizeof command / 16) ((uint4 *)&command)[threadIdx.x] = ((const uint4 *)&control->ring[done % FT_CUDA_RING])[threadIdx.x];
        __syncthreads();
        ft::execute(command, unit, units);
        __threadfence_system();
        __syncthreads();
        done++;
        if (threadIdx.x == 0) Device::store(&mine->done, done);
    }
    if (threadIdx.x != 0) return;
    if (said < 0) Device::store(&mine->expired, run);
    Device::store(&mine->exited, run);
}
