/*
 * The devices of this build. The host device always exists, for buffers in ordinary memory. A GPU
 * is used in addition if there is one.
 */
#include "device/cuda/open.h"
#include "device/host/host.h"
#include <string.h>

int ft_device_open(struct ft_device **out)
{
    const char *name = ft_param_str(FT_PARAM_DEVICE);
    if (*name && strcmp(name, "host") != 0 && strcmp(name, "cuda") != 0)
        return ft_fail(FT_INVAL, "FTCCL_DEVICE is '%s': not a device (host or cuda)", name);
    ft_device_find_driver();
    return ft_device_host.open(out);
}

#ifndef FT_HAVE_CUDA
static const struct ft_device_gpu none;
static struct ft_device_gpu ft_cuda_of_thread(bool load)
{
    return (void)load, none;
}
static struct ft_device_gpu ft_cuda_numbered(int number)
{
    return (void)number, none;
}
static int ft_cuda_count(void)
{
    return 0;
}
static void ft_cuda_free(struct ft_device_gpu which, void *ptr)
{
    (void)which, (void)ptr;
}

static int absent(void)
{
    return ft_fail(
        FT_NOTSUP,
        "this build has no CUDA device: configure found no nvcc, or was told --without-cuda");
}

static int ft_cuda_open(struct ft_device_gpu which, struct ft_device **out)
{
    (void)which, (void)out;
    return absent();
}

static int ft_cuda_alloc(struct ft_device_gpu which, size_t len_bytes, void **out)
{
    (void)which, (void)len_bytes, (void)out;
    return absent();
}
#endif

static bool asked_for_cuda(void)
{
    return strcmp(ft_param_str(FT_PARAM_DEVICE), "cuda") == 0;
}

struct ft_device_gpu ft_device_gpu_of_thread(void)
{
    if (strcmp(ft_param_str(FT_PARAM_DEVICE), "host") == 0)
        return (struct ft_device_gpu){0};
    struct ft_device_gpu found = ft_cuda_of_thread(asked_for_cuda());
    found.numbered |= !found.context && asked_for_cuda();
    return found;
}

int ft_device_gpu_count(void)
{
    struct ft_device_gpu mine = ft_device_gpu_of_thread();
    return mine.context || mine.numbered ? ft_cuda_count() : 0;
}

struct ft_device_gpu ft_device_gpu_numbered(int number)
{
    return ft_cuda_numbered(number);
}
int ft_device_gpu_alloc(struct ft_device_gpu which, size_t len_bytes, void **out)
{
    return ft_cuda_alloc(which, len_bytes, out);
}
void ft_device_gpu_free(struct ft_device_gpu which, void *ptr)
{
    ft_cuda_free(which, ptr);
}

/* A missing GPU is an error only if the user asked for it by name. */
int ft_device_open_gpu(struct ft_device_gpu which, struct ft_device **out)
{
    *out = NULL;
    if (!which.context && !which.numbered)
        return FT_OK;
    int rc = ft_cuda_open(which, out);
    if (rc != FT_NOTSUP)
        return rc;
    char why[FT_FAIL_BYTES];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 64, ft_fail_text());
    if (asked_for_cuda())
        return ft_fail(FT_NOTSUP, "FTCCL_DEVICE is cuda: %s", why);
    FT_LOG(INFO, "init", -1, "the GPU is not used: %s", why);
    return FT_OK;
}

void ft_device_close(struct ft_device *device)
{
    if (device)
        device->ops->close(device);
}

void ft_device_describe(FILE *out)
{
    fprintf(out, "host: instruction sets");
    for (const struct ft_host_isa *const *isa = ft_host_isas; *isa; isa++)
        if ((*isa)->usable())
            fprintf(out, " %s", (*isa)->name);
    fprintf(out, " (the first is used)\n");
#ifdef FT_HAVE_CUDA
    fprintf(out, "cuda: kernels are built in; libcuda is looked for when a program with a CUDA "
                 "context makes a communicator\n");
#else
    fprintf(out, "cuda: not in this build\n");
#endif
}
