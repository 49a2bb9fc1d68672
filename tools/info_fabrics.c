/*
 * Lists hardware that this build does not use: RDMA devices, the CUDA driver.
 */
#include "info.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifdef FT_HAVE_VERBS
#include <infiniband/verbs.h>

static const char *port_state(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    if (!context)
        return "cannot be opened";
    struct ibv_port_attr port;
    const char *state = ibv_query_port(context, 1, &port) ? "unknown"
                                                          : ibv_port_state_str(port.state);
    ibv_close_device(context);
    return state;
}

static void print_verbs(FILE *out)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list || n == 0)
        fputs("  verbs: no RDMA device\n", out);
    for (int i = 0; list && i < n; i++)
        fprintf(out, "  verbs: %s found (port 1: %s), transport not in this build\n",
                ibv_get_device_name(list[i]), port_state(list[i]));
    if (list)
        ibv_free_device_list(list);
}
#else
static void print_verbs(FILE *out)
{
    fputs("  verbs: not looked for, built without libibverbs\n", out);
}
#endif

/* Loads the driver, which is never linked. Loading it changes nothing on the device. */
static void print_cuda(FILE *out)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fputs("  cuda: no driver\n", out);
        return;
    }
    int (*get_version)(int *) = NULL;
    void *symbol = dlsym(driver, "cuDriverGetVersion");
    memcpy(&get_version, &symbol, sizeof symbol);
    int version = 0;
    if (get_version && get_version(&version) == 0)
        fprintf(out, "  cuda: driver %d.%d found, device not in this build\n", version / 1000,
                version % 1000 / 10);
    else
        fputs("  cuda: a driver that does not answer\n", out);
    dlclose(driver);
}

void info_fabrics(FILE *out)
{
    print_verbs(out);
    print_cuda(out);
}
