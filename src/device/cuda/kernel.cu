/*
 * The kernel. Each group of calls on a communicator launches one. It executes commands from a ring
 * in host-pinned memory until the engine ends the group, and so it holds its stream as long as the
 * group runs. Its thread blocks do not wait for each other.
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
    /* Other devices and the CPU only read these counters, so an atomic for this device is enough,
     * also in host memory. */
    static __device__ __forceinline__ uint64_t take(uint64_t *counter)
    {
        return atomicAdd((unsigned long long *)counter, 1ull);
    }
    static __device__ __forceinline__ uint64_t now_ns()
    {
        uint64_t x;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
        return x;
    }
    static __device__ __forceinline__ void pause()
    {
        __nanosleep(100);
    }
};

/* For a run of calls `bell` is NULL, and `number` is the run. For a captured kernel `number` is the
 * bell's id. */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ft_cuda_kernel(ft_cuda_control *control, uint64_t number, uint64_t bound_ns, ft_cuda_bell *bell)
{
    __shared__ ft_cuda_command command;
    __shared__ uint64_t done;
    __shared__ int said;
    ft_cuda_block *mine = &control->block[blockIdx.x];
    ft::Run run = {bell ? &bell->gate : &control->calls, number};
    uint64_t unit = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x,
             units = (uint64_t)gridDim.x * blockDim.x;
    if (threadIdx.x == 0) {
        if (bell)
            run.number = ft::take_ticket<Device>(control, bell, number, blockIdx.x);
        else
            Device::store(&mine->started, number);
        said = ft::wait_begin<Device>(run, bound_ns);
        done = Device::load(&mine->done);
    }
    __syncthreads();
    bool begun = said > 0;
    __syncthreads(); /* all threads have read `said` */
    while (begun) {
        if (threadIdx.x == 0)
            said = ft::wait_command<Device>(control, run, done, bound_ns);
        __syncthreads();
        if (said <= 0)
            break;
        if (threadIdx.x < sizeof command / 16)
            ((uint4 *)&command)[threadIdx.x] =
                ((const uint4 *)&control->ring[done % FT_CUDA_RING])[threadIdx.x];
        __syncthreads();
        ft::execute(command, unit, units);
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0)
            Device::store(&mine->done, ++done);
    }
    if (threadIdx.x != 0)
        return;
    if (said < 0)
        Device::store(bell ? &bell->expired : &mine->expired, run.number);
    if (!bell)
        Device::store(&mine->exited, number);
}
