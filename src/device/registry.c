/*
 * The devices of this build: FTCCL_DEVICE names one of them, else the best one that opens is taken.
 */
#include "device/host/host.h"
#include <string.h>

/* Best first. */
static const struct ft_device_ops *const devices[] = {&ft_device_host};

int ft_device_open(struct ft_device **out)
{
    const char *name = ft_param_str(FT_PARAM_DEVICE);
    int status = FT_NOTSUP;
    ft_device_find_driver();
    for (size_t i = 0; i < FT_ARRAY_LEN(devices); i++) {
        if (*name && strcmp(name, devices[i]->name) != 0) continue;
        status = devices[i]->open(out);
        if (status != FT_NOTSUP || *name) return status;
    }
    if (!*name) return status;
    if (strcmp(name, "cuda") == 0) return ft_fail(FT_NOTSUP, "FTCCL_DEVICE is cuda, but this build has no CUDA device");
    return ft_fail(FT_INVAL, "FTCCL_DEVICE is '%s': not a device (host or cuda)", name);
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
}
