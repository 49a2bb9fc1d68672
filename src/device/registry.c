/*
 * The devices of this build. The host device is always there, for buffers in ordinary memory; the GPU beside it if there is one.
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
static void *ft_cuda_context(bool load)
{
    (void)load;
    return NULL;
}

static int ft_cuda_open(void *context, struct ft_device **out)
{
    (void)context, (void)out;
    return ft_fail(FT_NOTSUP, "this build has no CUDA device: configure found no nvcc, or was told --without-cuda");
}
#endif

static bool asked_for_cuda(void) { return strcmp(ft_param_str(FT_PARAM_DEVICE), "cuda") == 0; }

void *ft_device_gpu_context(void)
{
    return strcmp(ft_param_str(FT_PARAM_DEVICE), "host") == 0 ? NULL : ft_cuda_context(asked_for_cuda());
}

/* An absent GPU is not an error unless it was asked for by name. */
int ft_device_open_gpu(void *context, struct ft_device **out)
{
    *out = NULL;
    if (!context && !asked_for_cuda()) return FT_OK;
    int rc = ft_cuda_open(context, out);
    if (rc != FT_NOTSUP) return rc;
    char why[FT_FAIL_BYTES];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 64, ft_fail_text());
    if (asked_for_cuda()) return ft_fail(FT_NOTSUP, "FTCCL_DEVICE is cuda: %s", why);
    FT_LOG(INFO, "init", -1, "the GPU is not used: %s", why);
    return FT_OK;
}

void ft_device_close(struct ft_device *device)
{
    if (device) device->ops->close(device);
}

void ft_device_describe(FILE *out)
{
    fprintf(out, "host: instruction sets");
    for (const struct ft_host_isa *const *isa = ft_host_isas; *isa; isa++)
        if ((*isa)->usable()) fprintf(out, " %s", (*isa)->name);
    fprintf(out, " (the first is used)\n");
#ifdef FT_HAVE_CUDA
    fprintf(out, "cuda: kernels are built in; libcuda is looked for when a program with a CUDA context makes a communicator\n");
#else
    fprintf(out, "cuda: not in this build\n");
#endif
}
