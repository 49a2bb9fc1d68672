/*
 * Property: every call that takes a buffer refuses a buffer in a GPU's memory with a sentence that
 * says so, and nothing touches the buffer. Managed memory, host memory that the driver knows, and
 * ordinary memory pass. In a process without CUDA, nothing is asked. Method: a stand-in for CUDA's
 * driver says that a page without access belongs to a GPU. Each case is a child process, because a
 * loaded driver stays loaded.
 */
#include "tests/abi/nccl_header.h"
#include "tests/proc/proc.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace
{

const size_t kPage = 65536;

/* What the driver says of an address: set_range(from, to, memory type, managed). */
using SetRange = void (*)(const void *, const void *, int, int);
enum { kHost = 1, kDevice = 2 };

/* Does `call` give `want`, and does its sentence have `word`? Prints what is not so. */
void check(const char *name, ncclResult_t got, ncclResult_t want, ncclComm_t comm, const char *word)
{
    const char *sentence = ncclGetLastError(comm);
    if (got != want)
        printf("%s: %d, not %d: %s\n", name, got, want, sentence);
    else if (*word && !strstr(sentence, word))
        printf("%s: %s\n", name, sentence);
}

/* buffers DRIVER: every call with a buffer of each kind. Prints what is wrong, then "end". */
CHILD(buffers)
{
    void *driver = dlopen(arguments[0].c_str(), RTLD_NOW | RTLD_LOCAL);
    auto set_range = driver ? reinterpret_cast<SetRange>(dlsym(driver, "standin_set_range"))
                            : nullptr;
    if (!set_range)
        return 1;
    char *gpu = static_cast<char *>(
        mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    static int host[1024], managed[1024], known[1024];
    set_range(gpu, gpu + kPage, kDevice, 0);
    set_range(managed, managed + 1024, kDevice, 1);
    set_range(known, known + 1024, kHost, 0);
    ncclComm_t c;
    if (ncclCommInitAll(&c, 1, nullptr) != ncclSuccess)
        return 1;
    void *handle;
    ncclWindow_t window;
    ncclRedOp_t op;
    const auto no = ncclInvalidUsage;
    const char *why = "memory of a GPU";
#define REFUSED(name, ...) check(#name, nccl##name(__VA_ARGS__), no, c, why)
    REFUSED(AllReduce, gpu, host, 8, ncclInt32, ncclSum, c, nullptr);
    REFUSED(AllReduce, host, gpu + 100, 8, ncclInt32, ncclSum, c, nullptr);
    REFUSED(Reduce, gpu, host, 8, ncclInt32, ncclSum, 0, c, nullptr);
    REFUSED(Broadcast, host, gpu, 8, ncclInt32, 0, c, nullptr);
    REFUSED(Bcast, gpu, 8, ncclInt32, 0, c, nullptr);
    REFUSED(AllGather, gpu, host, 8, ncclInt32, c, nullptr);
    REFUSED(ReduceScatter, gpu, host, 8, ncclInt32, ncclSum, c, nullptr);
    REFUSED(AlltoAll, host, gpu, 8, ncclInt32, c, nullptr);
    REFUSED(Gather, gpu, host, 8, ncclInt32, 0, c, nullptr);
    REFUSED(Scatter, host, gpu, 8, ncclInt32, 0, c, nullptr);
    REFUSED(Send, gpu, 8, ncclInt32, 0, c, nullptr);
    REFUSED(Recv, gpu, 8, ncclInt32, 0, c, nullptr);
    REFUSED(CommRegister, c, gpu, 100, &handle);
    REFUSED(CommWindowRegister, c, gpu, 100, &window, NCCL_WIN_DEFAULT);
    REFUSED(RedOpCreatePreMulSum, &op, gpu, ncclInt32, ncclScalarDevice, c);
    for (int *good : {host, managed, known})
        check("AllReduce", ncclAllReduce(good, good, 8, ncclInt32, ncclSum, c, nullptr),
              ncclSuccess, c, "");
    check("AllReduce of nothing", ncclAllReduce(gpu, gpu, 0, ncclInt32, ncclSum, c, nullptr),
          ncclSuccess, c, "");
    if (ncclCommWindowRegister(c, host, sizeof host, &window, NCCL_WIN_DEFAULT) == ncclSuccess)
        REFUSED(PutSignal, gpu, 8, ncclInt32, 0, window, 0, 0, 0, 0, c, nullptr);
    if (ftcclStreamSynchronize(nullptr) != ftcclSuccess || ncclCommDestroy(c) != ncclSuccess)
        printf("%s\n", ftcclGetLastError(nullptr));
    printf("end\n");
    return 0;
}

std::string standin()
{
    const char *build = getenv("top_builddir");
    return std::string(build ? build : ".") + "/tests/abi/.libs/libcuda.so.1";
}

TEST(GpuPointer, IsRefusedByEveryCall)
{
    proc::Child child("buffers", {standin()});
    EXPECT_EQ("end", child.line(60));
    EXPECT_EQ(0, child.wait());
}

/* The library itself does not bring the driver into the process. */
CHILD(without)
{
    ncclComm_t c;
    int value = 3;
    if (ncclCommInitAll(&c, 1, nullptr) != ncclSuccess ||
        ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, c, nullptr) != ncclSuccess)
        return 1;
    if (ftcclStreamSynchronize(nullptr) != ftcclSuccess || ncclCommDestroy(c) != ncclSuccess)
        return 1;
    printf("%s\n", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) ? "loaded" : "not there");
    return 0;
}

TEST(GpuPointer, TheDriverIsNotLoadedByUs)
{
    proc::Child child(
        "without", {},
        {{"LD_LIBRARY_PATH", standin().substr(0, standin().rfind('/')) + ":" +
                                 (getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "")}});
    EXPECT_EQ("not there", child.line(60));
}

} // namespace
