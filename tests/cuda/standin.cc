/*
 * The stand-in driver, see standin.h. It has four devices, each with only its primary context.
 * Memory of a device is a memfd. Its address in the program is reserved without access; kernels and
 * copies use a second mapping of the same bytes. The blocks of a kernel are threads, which run the
 * kernel's threads one after another. The twin executes the same source as the kernel
 * (device/cuda/pass.h).
 */
#include "standin.h"
#include "standin_graph.h"
#include "standin_peer.h"
#include "device/cuda/pass.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

#define MAY_FAIL(call)                           \
    do {                                         \
        CUresult result_ = standin::fault(call); \
        if (result_ != CUDA_SUCCESS)             \
            return result_;                      \
    } while (0)

/* ---- devices and contexts -------------------------------------------------------------------- */

struct Device {
    std::atomic<int> users{0};
};
static Device devices[4];
static thread_local std::vector<CUcontext> contexts;

/* The current context's. A thread without one is taken to have the first: only the runtime's users
 * need not care. */
static Device *current()
{
    return contexts.empty() || !contexts.back() ? devices : (Device *)contexts.back();
}
static bool is_device(CUdevice number)
{
    return number >= 0 && number < (int)std::size(devices);
}

EXPORT CUresult cuInit(unsigned)
{
    MAY_FAIL("cuInit");
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int *out)
{
    return *out = (int)std::size(devices), CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice *out, int number)
{
    return *out = number, is_device(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetName(char *out, int len, CUdevice)
{
    strncpy(out, "stand-in", (size_t)len);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
    return *out = contexts.empty() ? nullptr : contexts.back(), CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
    *out = (CUdevice)(current() - devices);
    return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    contexts.clear();
    if (context)
        contexts.push_back(context);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    MAY_FAIL("cuCtxPushCurrent");
    contexts.push_back(context);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    if (contexts.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice number)
{
    MAY_FAIL("cuDevicePrimaryCtxRetain");
    if (!is_device(number))
        return CUDA_ERROR_INVALID_DEVICE;
    devices[number].users++;
    return *out = (CUcontext)&devices[number], CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number)
{
    if (!is_device(number) || devices[number].users == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    devices[number].users--;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned *flags, int *active)
{
    if (!is_device(number))
        return CUDA_ERROR_INVALID_DEVICE;
    return *flags = 0, *active = devices[number].users > 0, CUDA_SUCCESS;
}
EXPORT int standin_context_users(int number)
{
    return devices[number].users;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Pinned memory is every device's, unless it names one. id: of memory of a device, never used
 * again. opens: how often another process's is open. */
struct Memory {
    size_t len;
    char *there;
    bool pinned;
    int fd;
    const Device *device;
    uint64_t id = 0;
    int opens = 0;
};
#define REGISTERED (-2) /* as `fd`: memory of the program's */
static std::mutex memory_lock;
static std::map<uint64_t, Memory> memories; /* by the address that the program has */

static std::map<uint64_t, Memory>::iterator find_memory(uint64_t at)
{
    auto it = memories.upper_bound(at);
    if (it == memories.begin())
        return memories.end();
    --it;
    return at < it->first + it->second.len ? it : memories.end();
}

/* Where copies and, on its device, kernels find it; else nullptr, as a GPU would stop with. */
static char *reach(uint64_t at, const Device *from = nullptr)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = find_memory(at);
    if (it == memories.end())
        return nullptr;
    const Device *device = it->second.device;
    bool other = from && device && device != from;
    if (other && (it->second.pinned || it->second.opens ||
                  !standin::is_peer((int)(from - devices), (int)(device - devices))))
        return nullptr;
    return it->second.there + (at - it->first);
}

static size_t round_page(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

/* Memory of the current context's device, in a file. */
static CUresult add_memory(int fd, size_t size, uint64_t id, int opens, CUdeviceptr *out)
{
    void *here = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *there = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (here == MAP_FAILED || there == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> hold(memory_lock);
    memories[(uint64_t)here] = {size, (char *)there, false, fd, current(), id, opens};
    *out = (CUdeviceptr)here;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
    static std::atomic<uint64_t> ids;
    MAY_FAIL("cuMemAlloc");
    if (len == 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = round_page(len);
    if (size < len || size > (size_t)1 << 40)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t id = ++ids;
    int fd = memfd_create(standin::file_of(getpid(), id).c_str(), MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_memory(fd, size, id, 0, out);
    /* as a GPU's memory is not zeroed either */
    if (result == CUDA_SUCCESS)
        memset(reach(*out), 0xdb, size);
    return result;
}

/* Memory of the program's, shared or not, that devices reach from now on, at its own address. */
EXPORT CUresult cuMemHostRegister_v2(void *at, size_t len, unsigned flags)
{
    MAY_FAIL("cuMemHostRegister");
    if (standin::unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!at || len == 0 || (flags & ~7u))
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> hold(memory_lock);
    auto next = memories.lower_bound((uint64_t)at);
    if (find_memory((uint64_t)at) != memories.end() ||
        (next != memories.end() && next->first < (uint64_t)at + len))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    memories[(uint64_t)at] = {len, (char *)at, true, REGISTERED,
                              flags & CU_MEMHOSTREGISTER_PORTABLE ? nullptr : current()};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *at)
{
    if (standin::unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = memories.find((uint64_t)at);
    if (it == memories.end() || it->second.fd != REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    memories.erase(it);
    return CUDA_SUCCESS;
}

static CUresult free_memory(uint64_t at, bool pinned)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = memories.find(at);
    if (it == memories.end() || it->second.pinned != pinned || it->second.fd == REGISTERED ||
        it->second.opens)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)at, it->second.len);
    if (!pinned)
        munmap(it->second.there, it->second.len), close(it->second.fd);
    memories.erase(it);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
    return standin::unsafe() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : free_memory(at, false);
}
EXPORT CUresult cuMemFreeHost(void *at)
{
    return standin::unsafe() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                             : free_memory((uint64_t)at, true);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t len, unsigned)
{
    MAY_FAIL("cuMemHostAlloc");
    if (standin::unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    size_t size = round_page(len);
    void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> hold(memory_lock);
    memories[(uint64_t)at] = {size, (char *)at, true, -1, nullptr};
    *out = at;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned)
{
    if (!reach((uint64_t)at))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)at;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr at)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = find_memory(at);
    if (what == CU_POINTER_ATTRIBUTE_BUFFER_ID)
        MAY_FAIL("buffer id");
    if (it != memories.end() && it->second.id && what == CU_POINTER_ATTRIBUTE_BUFFER_ID)
        return *(uint64_t *)out = it->second.id, CUDA_SUCCESS;
    if (it == memories.end() || what != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)out = it->second.pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}

/* All that the library asks at once; of what nobody knows, zeros. */
EXPORT CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *what, void **out,
                                       CUdeviceptr at)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = find_memory(at);
    for (unsigned i = 0; i < n; i++) {
        bool type = it != memories.end() && what[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
             number = it != memories.end() && what[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        *(int *)out[i] = type     ? (it->second.pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE)
                         : number ? (int)(it->second.device - devices)
                                  : 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t len)
{
    MAY_FAIL("cuMemsetD8");
    if (!reach(at))
        return CUDA_ERROR_INVALID_VALUE;
    memset(reach(at), value, len);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t len)
{
    char *into = reach(to) ? reach(to) : (char *)to,
         *out_of = reach(from) ? reach(from) : (char *)from;
    bool is_word = len == sizeof(uint32_t) && (uintptr_t)into % len == 0 &&
                   (uintptr_t)out_of % len == 0;
    if (is_word) { /* in one piece, as a GPU copies it, while the processor may write it */
        uint32_t word = __atomic_load_n((uint32_t *)(void *)out_of, __ATOMIC_ACQUIRE);
        memcpy(into, &word, len);
    } else if (len > 0)
        memcpy(into, out_of, len);
    return CUDA_SUCCESS;
}

/* ---- memory of others, see standin_peer.cc --------------------------------------------------- */

int standin::device_of(CUcontext context)
{
    return (int)((Device *)context - devices);
}

bool standin::find(CUdeviceptr at, Export *out)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    auto it = find_memory(at);
    if (it == memories.end() || !it->second.id || it->second.opens)
        return false;
    *out = {it->second.fd, it->second.len, it->second.id};
    return true;
}

CUresult standin::open(const Export &other, CUdeviceptr *out)
{
    {
        std::lock_guard<std::mutex> hold(memory_lock);
        /* the same one in the same context has the same address */
        for (auto &[at, memory] : memories) {
            if (!memory.opens || memory.id != other.id || memory.device != current())
                continue;
            memory.opens++;
            close(other.fd);
            return *out = (CUdeviceptr)at, CUDA_SUCCESS;
        }
    }
    return add_memory(other.fd, other.len, other.id, 1, out);
}

CUresult standin::close_opened(CUdeviceptr at)
{
    {
        std::lock_guard<std::mutex> hold(memory_lock);
        auto it = memories.find(at);
        if (it == memories.end() || !it->second.opens)
            return CUDA_ERROR_INVALID_VALUE;
        if (--it->second.opens)
            return CUDA_SUCCESS;
    }
    return free_memory(at, false);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *all)
{
    return *unused = *all = (size_t)1 << 30, CUDA_SUCCESS;
}

EXPORT int standin_live_memory()
{
    std::lock_guard<std::mutex> hold(memory_lock);
    return (int)memories.size();
}

/* ---- streams and events ---------------------------------------------------------------------- */

struct Point {
    std::mutex lock;
    std::condition_variable changed;
    bool passed = false;
};

struct Event {
    const Device *device;
    std::shared_ptr<Point> last;
    standin::Place captured;
};

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool busy = false, blocked = false, stop = false;
    const Device *device = current();
    standin::Place capture;
    std::thread thread{[this] { work(); }};

    void work()
    {
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            changed.wait(hold, [this] {
                return (!tasks.empty() && !blocked) || (stop && tasks.empty());
            });
            if (tasks.empty())
                return;
            auto task = std::move(tasks.front());
            tasks.pop_front();
            busy = true;
            hold.unlock();
            task();
            hold.lock();
            busy = false;
            changed.notify_all();
        }
    }
    void add(std::function<void()> task)
    {
        if (standin::capture(capture, task))
            return;
        std::lock_guard<std::mutex> hold(lock);
        tasks.push_back(std::move(task));
        changed.notify_all();
    }
    bool idle()
    {
        std::lock_guard<std::mutex> hold(lock);
        return tasks.empty() && !busy;
    }
    void drain()
    {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [this] { return tasks.empty() && !busy; });
    }
};

static std::mutex streams_lock;
/* outlives the exit of the process */
static std::map<CUstream, Stream *> &streams = *new std::map<CUstream, Stream *>;

static Stream *stream_of(CUstream handle)
{
    std::lock_guard<std::mutex> hold(streams_lock);
    auto it = streams.find(handle);
    if (it != streams.end())
        return it->second;
    static thread_local char own[std::size(devices)];
    Device *device = current();
    bool per_thread = handle == CU_STREAM_PER_THREAD;
    if (handle != nullptr && handle != CU_STREAM_LEGACY && !per_thread)
        return nullptr;
    /* the legacy stream has two names */
    Stream *&made =
        streams[per_thread ? (CUstream)(void *)&own[device - devices] : (CUstream)(void *)device];
    return made ? made : made = new Stream;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned)
{
    MAY_FAIL("cuStreamCreate");
    Stream *stream = new Stream;
    std::lock_guard<std::mutex> hold(streams_lock);
    streams[(CUstream)stream] = stream;
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    Stream *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        streams.erase(handle);
    }
    {
        std::lock_guard<std::mutex> hold(stream->lock);
        stream->stop = true;
        stream->changed.notify_all();
    }
    stream->thread.join();
    delete stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    Stream *stream = stream_of(handle);
    return !stream          ? CUDA_ERROR_INVALID_HANDLE
           : stream->idle() ? CUDA_SUCCESS
                            : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    Stream *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->drain();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out)
{
    if (!stream_of(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (standin::capturing(stream_of(handle)->capture))
        return *out = CU_STREAM_CAPTURE_STATUS_ACTIVE, CUDA_SUCCESS;
    *out = standin::fault("capturing") == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_NONE
                                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned)
{
    MAY_FAIL("cuEventCreate");
    *out = (CUevent) new Event{current(), nullptr, {}};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    delete (Event *)event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream on)
{
    MAY_FAIL("cuEventRecord");
    Stream *stream = stream_of(on);
    if (!stream || stream->device != ((Event *)handle)->device)
        return CUDA_ERROR_INVALID_HANDLE;
    ((Event *)handle)->captured = stream->capture;
    if (standin::capturing(stream->capture))
        return CUDA_SUCCESS;
    auto point = std::make_shared<Point>();
    ((Event *)handle)->last = point;
    stream->add([point] {
        std::lock_guard<std::mutex> hold(point->lock);
        point->passed = true;
        point->changed.notify_all();
    });
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream on, CUevent handle, unsigned)
{
    MAY_FAIL("cuStreamWaitEvent");
    Stream *stream = stream_of(on);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (standin::join(stream->capture, ((Event *)handle)->captured))
        return CUDA_SUCCESS;
    auto point = ((Event *)handle)->last;
    if (!point)
        return CUDA_SUCCESS;
    stream->add([point] {
        std::unique_lock<std::mutex> hold(point->lock);
        point->changed.wait(hold, [&] { return point->passed; });
    });
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent handle)
{
    auto point = ((Event *)handle)->last;
    if (!point)
        return CUDA_SUCCESS;
    std::lock_guard<std::mutex> hold(point->lock);
    return point->passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    auto point = ((Event *)handle)->last;
    if (!point)
        return CUDA_SUCCESS;
    std::unique_lock<std::mutex> hold(point->lock);
    point->changed.wait(hold, [&] { return point->passed; });
    return CUDA_SUCCESS;
}

standin::Place *standin::place_of(CUstream handle)
{
    Stream *stream = stream_of(handle);
    return stream ? &stream->capture : nullptr;
}

void standin::enqueue(CUstream handle, std::function<void()> task)
{
    stream_of(handle)->add(std::move(task));
}

EXPORT void standin_block(CUstream handle)
{
    Stream *stream = stream_of(handle);
    std::lock_guard<std::mutex> hold(stream->lock);
    stream->blocked = true;
}

EXPORT void standin_let_go(CUstream handle)
{
    Stream *stream = stream_of(handle);
    std::lock_guard<std::mutex> hold(stream->lock);
    stream->blocked = false;
    stream->changed.notify_all();
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream on)
{
    Stream *stream = stream_of(on);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    /* pageable memory is read before the call returns, as the driver does */
    auto kept = std::make_shared<std::vector<char>>();
    if (!reach(from) && !standin::capturing(stream->capture))
        kept->assign((const char *)from, (const char *)from + len);
    stream->add([=] { cuMemcpy(to, kept->empty() ? from : (CUdeviceptr)kept->data(), len); });
    return CUDA_SUCCESS;
}

/* ---- the kernel's twin ----------------------------------------------------------------------- */

static std::atomic<int> launched, running;

struct Host {
    static uint64_t load(const uint64_t *from)
    {
        return __atomic_load_n(from, __ATOMIC_ACQUIRE);
    }
    static void store(uint64_t *to, uint64_t x)
    {
        __atomic_store_n(to, x, __ATOMIC_RELEASE);
    }
    static uint64_t now_ns()
    {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    static uint64_t take(uint64_t *counter)
    {
        return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    }
    static void pause()
    {
        usleep(20);
    }
};

struct Launch {
    const Device *device;
    ft_cuda_control *control;
    ft_cuda_bell *bell;
    uint64_t threads, units, number, bound_ns;
};

static void run_block(const Launch &launch, unsigned b)
{
    ft_cuda_control *control = launch.control;
    ft_cuda_block *mine = &control->block[b];
    ft::Run run = {launch.bell ? &launch.bell->gate : &control->calls, launch.number};
    if (launch.bell)
        run.number = ft::take_ticket<Host>(control, launch.bell, launch.number, b);
    else
        Host::store(&mine->started, launch.number);
    int said = ft::wait_begin<Host>(run, launch.bound_ns);
    uint64_t done = Host::load(&mine->done);
    while (said > 0 && (said = ft::wait_command<Host>(control, run, done, launch.bound_ns)) > 0) {
        ft_cuda_command command = control->ring[done % FT_CUDA_RING];
        for (int k = 0; k < command.nsrc; k++)
            command.src[k] = (uint64_t)reach(command.src[k], launch.device);
        for (int d = 0; d < command.ndst; d++)
            command.dst[d] = (uint64_t)reach(command.dst[d], launch.device);
        if (command.scale_from)
            command.scale_from = (uint64_t)reach(command.scale_from, launch.device);
        for (uint64_t t = 0; t < launch.threads; t++)
            ft::execute(command, b * launch.threads + t, launch.units);
        if (b == 0 && command.ndst > 0 && command.count > 0 &&
            standin::fault("spoil") != CUDA_SUCCESS)
            *(char *)command.dst[0] ^= 1;
        Host::store(&mine->done, ++done);
    }
    if (said < 0)
        Host::store(launch.bell ? &launch.bell->expired : &mine->expired, run.number);
    if (!launch.bell)
        Host::store(&mine->exited, launch.number);
}

EXPORT CUresult cuLaunchKernel(CUfunction kernel, unsigned blocks, unsigned, unsigned,
                               unsigned threads, unsigned, unsigned, unsigned, CUstream on,
                               void **arguments, void **)
{
    MAY_FAIL("cuLaunchKernel");
    Stream *stream = stream_of(on);
    if (!stream || stream->device != current() || (Device *)kernel != current())
        return CUDA_ERROR_INVALID_HANDLE;
    CUdeviceptr bell = *(CUdeviceptr *)arguments[3];
    Launch launch{current(),
                  (ft_cuda_control *)reach(*(CUdeviceptr *)arguments[0]),
                  bell ? (ft_cuda_bell *)reach(bell) : nullptr,
                  threads,
                  (uint64_t)blocks * threads,
                  *(uint64_t *)arguments[1],
                  *(uint64_t *)arguments[2]};
    launched++;
    stream->add([=] {
        running++;
        std::vector<std::thread> others;
        for (unsigned b = 1; b < blocks; b++)
            others.emplace_back([=] { run_block(launch, b); });
        run_block(launch, 0);
        for (auto &other : others)
            other.join();
        running--;
    });
    return CUDA_SUCCESS;
}

EXPORT int standin_launched()
{
    return launched;
}
EXPORT int standin_running()
{
    return running;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* The image has to be one of nvcc's: it begins with the fat binary's mark. */
EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    MAY_FAIL("cuModuleLoadData");
    uint32_t mark;
    memcpy(&mark, image, sizeof mark);
    if (mark != 0xba55ed50u)
        return CUDA_ERROR_INVALID_IMAGE;
    return *out = (CUmodule)current(), CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule)
{
    return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    if (strcmp(name, FT_CUDA_KERNEL) != 0)
        return CUDA_ERROR_NOT_FOUND;
    return *out = (CUfunction)module, CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult, const char **out)
{
    return *out = "STANDIN_ERROR", CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult, const char **out)
{
    return *out = "an error of the stand-in", CUDA_SUCCESS;
}
