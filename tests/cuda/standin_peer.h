/*
 * Internal to the stand-in driver: memory of devices that kernels of other devices and processes
 * access.
 */
#ifndef FT_TESTS_STANDIN_PEER_H
#define FT_TESTS_STANDIN_PEER_H

#include <cuda.h>
#include <stdint.h>

#include <string>

namespace standin
{

/* What another process needs to open memory: a file, which the receiver owns, and the number of the
 * allocation, which is unique. */
struct Export {
    int fd;
    size_t len;
    uint64_t id;
};

std::string file_of(int pid, uint64_t id); /* name of the file of an allocation */
bool is_peer(int from, int of);            /* kernels of device `from` can access memory of `of` */

int device_of(CUcontext context);
/* Finds memory that this process has allocated; the memory keeps the file. */
bool find(CUdeviceptr at, Export *out);
CUresult open(const Export &other, CUdeviceptr *out);
CUresult close_opened(CUdeviceptr at);

} // namespace standin

#endif
