/*
 * Memory of the stand-in driver that other devices and processes access. A handle says where the
 * file of the memory is, in a process of this machine. As with the driver, a process cannot open
 * its own handles, and a file exists as long as a process has it. A device can access another one's
 * memory after a context was told to.
 */
#include "standin_peer.h"
#include "standin.h"
#include "standin_graph.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define DEVICES 4
#define MARK 0x6970632d73746e64u

struct Handle {
    uint64_t mark, id, len;
    int pid, fd;
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle), "a handle fits the driver's");

static std::atomic<bool> peers[DEVICES][DEVICES];

bool standin::is_peer(int from, int of)
{
    return peers[from][of];
}

std::string standin::file_of(int pid, uint64_t id)
{
    return "standin-" + std::to_string(pid) + "-" + std::to_string(id);
}

#define MAY_FAIL(call)                                    \
    do {                                                  \
        CUresult result_ = standin::fault(call);          \
        if (result_ != CUDA_SUCCESS)                      \
            return result_;                               \
        if (standin::unsafe())                            \
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; \
    } while (0)

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
    standin::Export mine;
    MAY_FAIL("cuIpcGetMemHandle");
    if (!standin::find(at, &mine))
        return CUDA_ERROR_INVALID_VALUE;
    Handle handle = {MARK, mine.id, mine.len, getpid(), mine.fd};
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle opaque, unsigned flags)
{
    Handle handle;
    char name[128] = "";
    MAY_FAIL("cuIpcOpenMemHandle");
    memcpy(&handle, &opaque, sizeof handle);
    if (handle.mark != MARK || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        handle.pid == getpid())
        return CUDA_ERROR_INVALID_VALUE;
    std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
    std::string file = "/memfd:" + standin::file_of(handle.pid, handle.id);
    if (readlink(path.c_str(), name, sizeof name - 1) < 0 ||
        strncmp(name, file.c_str(), file.size()) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_MAP_FAILED;
    CUresult result = standin::open({fd, handle.len, handle.id + ((uint64_t)handle.pid << 32)},
                                    out);
    if (result != CUDA_SUCCESS)
        close(fd);
    return result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    MAY_FAIL("cuIpcCloseMemHandle");
    return standin::close_opened(at);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice from, CUdevice of)
{
    MAY_FAIL("cuDeviceCanAccessPeer");
    if (from < 0 || from >= DEVICES || of < 0 || of >= DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    return *out = from != of, CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext of, unsigned flags)
{
    CUdevice from;
    MAY_FAIL("cuCtxEnablePeerAccess");
    if (cuCtxGetDevice(&from) != CUDA_SUCCESS || flags != 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (standin::device_of(of) == from)
        return CUDA_ERROR_INVALID_DEVICE;
    return peers[from][standin::device_of(of)].exchange(true)
               ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               : CUDA_SUCCESS;
}
