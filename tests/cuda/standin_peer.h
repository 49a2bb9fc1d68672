/*
 * Inside the stand-in driver: memory of devices that kernels of other devices and other processes
 * reach.
 */
#ifndef FT_TESTS_STANDIN_PEER_H
#define FT_TESTS_STANDIN_PEER_H

#include <cuda.h>
#include <stdint.h>

#include <string>

namespace standin
{

/* What another process needs to open it: a file, which is the taker's, and the number of the
 * allocation, apart from all others. */
struct Export {
    int fd;
    size_t len;
    uint64_t id;
};

std::string file_of(int pid, uint64_t id); /* the name of the file of an allocation */
bool is_peer(int from, int of);            /* kernels of device `from` reach the memory of `of` */

int device_of(CUcontext context);
/* memory that this process has allocated; the file stays the memory's */
bool find(CUdeviceptr at, Export *out);
CUresult open(const Export &other, CUdeviceptr *out);
CUresult close_opened(CUdeviceptr at);

} // namespace standin

#endif
