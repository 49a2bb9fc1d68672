/*
 * Loads libcuda.so.1. A missing driver is not an error: there is no CUDA device then.
 */
#include "device/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>

#define LIBRARY "libcuda.so.1"
#define QUOTED(x) #x
#define SYMBOL(x) QUOTED(x) /* expands the name first, because cuda.h adds the version to it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_cuda_driver driver;
static bool ready; /* under lock; the library stays for the life of the process */

static int find_calls(void *library)
{
    const char *missing = NULL;
#define X(call)                                            \
    *(void **)&driver.call = dlsym(library, SYMBOL(call)); \
    if (!driver.call)                                      \
        missing = SYMBOL(call);
    FT_CUDA_CALLS(X)
#undef X
    return missing ? ft_fail(FT_NOTSUP, "%s has no %s: the driver is too old", LIBRARY, missing)
                   : FT_OK;
}

static int load_locked(bool load)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
    if (!library)
        return ft_fail(FT_NOTSUP,
                       load ? "there is no CUDA driver here: %s"
                            : "the program has not loaded the CUDA driver (%s)",
                       load ? dlerror() : LIBRARY);
    int rc = find_calls(library);
    CUresult result = rc == FT_OK ? driver.cuInit(0) : CUDA_SUCCESS;
    if (rc == FT_OK && result != CUDA_SUCCESS) {
        ft_cuda_check(&driver, result, "cuInit");
        rc = FT_NOTSUP;
    }
    if (rc != FT_OK)
        dlclose(library);
    ready = rc == FT_OK;
    return rc;
}

int ft_cuda_driver(bool load, const struct ft_cuda_driver **out)
{
    pthread_mutex_lock(&lock);
    int rc = ready ? FT_OK : load_locked(load);
    pthread_mutex_unlock(&lock);
    if (rc == FT_OK)
        *out = &driver;
    return rc;
}

int ft_cuda_check(const struct ft_cuda_driver *cuda, CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return FT_OK;
    const char *name = NULL, *text = NULL;
    cuda->cuGetErrorName(result, &name);
    cuda->cuGetErrorString(result, &text);
    return ft_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? FT_NOMEM : FT_DEVICE, "%s: %s (%s)", call,
                   text ? text : "unknown error", name ? name : "?");
}
