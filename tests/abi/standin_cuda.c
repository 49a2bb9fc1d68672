/*
 * A stand-in for CUDA's driver, libcuda.so.1. It knows the address ranges that a test has told it.
 */
#include <stddef.h>
#include <stdint.h>

#define RANGES 8
static struct range {
    uintptr_t from, to;
    int type, managed;
} ranges[RANGES];
static int nranges;

void standin_set_range(const void *from, const void *to, int type, int managed);
int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer);

__attribute__((visibility("default"))) void standin_set_range(const void *from, const void *to,
                                                              int type, int managed)
{
    if (nranges < RANGES)
        ranges[nranges++] = (struct range){(uintptr_t)from, (uintptr_t)to, type, managed};
}

/* As the driver: an address that it does not know is an invalid value. */
__attribute__((visibility("default"))) int cuPointerGetAttribute(void *data, int attribute,
                                                                 unsigned long long pointer)
{
    for (int i = 0; i < nranges; i++) {
        const struct range *r = &ranges[i];
        if (pointer < r->from || pointer >= r->to)
            continue;
        if (attribute == 2)
            *(int *)data = r->type;
        else if (attribute == 8)
            *(unsigned char *)data = (unsigned char)r->managed;
        else
            return 1;
        return 0;
    }
    return 1;
}
