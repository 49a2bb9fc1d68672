/*
 * Detects memory of a device that the communicator does not use. A buffer on a GPU looks like any
 * other address until it is touched. CUDA's driver knows, and only a process that has loaded the
 * driver can have such a buffer. This check is for calls and communicators that work without the
 * CUDA device.
 */
#include "device/device.h"

#include <dlfcn.h>

/* The part of the driver's interface that is used here, from its documentation; 0 means success. */
typedef int pointer_attribute(void *data, int attribute, unsigned long long pointer);
enum { MEMORY_TYPE = 2, IS_MANAGED = 8 }; /* attributes */
enum { ON_DEVICE = 2, ARRAY = 3 };        /* memory types */

/* The driver's function, or NULL. Relaxed: the function stays valid, because the library is never
 * closed. */
static _Atomic(pointer_attribute *) ask;

void ft_device_find_driver(void)
{
    if (atomic_load_explicit(&ask, memory_order_relaxed))
        return;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = driver ? dlsym(driver, "cuPointerGetAttribute") : NULL;
    atomic_store_explicit(&ask, (pointer_attribute *)function, memory_order_relaxed);
}

bool ft_device_has_driver(void)
{
    return atomic_load_explicit(&ask, memory_order_relaxed) != NULL;
}

static bool is_on_device(const void *ptr)
{
    pointer_attribute *get = atomic_load_explicit(&ask, memory_order_relaxed);
    int type = 0;
    unsigned char managed[4] = {0}; /* a boolean: managed memory, which the CPU can access too */
    if (!get || !ptr || get(&type, MEMORY_TYPE, (uintptr_t)ptr) != 0 ||
        (type != ON_DEVICE && type != ARRAY))
        return false;
    return get(managed, IS_MANAGED, (uintptr_t)ptr) != 0 || !managed[0];
}

int ft_device_check(const char *call, const void *ptr)
{
    if (!is_on_device(ptr))
        return FT_OK;
    return ft_fail(FT_NOTSUP,
                   "%s: %p is memory of a GPU, and this call or communicator takes host memory "
                   "alone: docs/device-cuda.md says why",
                   call, ptr);
}
