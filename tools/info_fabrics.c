/*
 * Lists hardware that this build does not use: the CUDA driver.
 */
#include "info.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

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
    print_cuda(out);
}
