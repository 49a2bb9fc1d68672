/*
 * How fast this rank's processor and memory are now: two fixed pieces of work, one repetition a
 * call, so that the caller does other things between them and takes the fastest.
 */
#include "device/device.h"

#include <string.h>

#define ORDER 128 /* of the matrices */

enum { COPY_WORDS = FT_CHECK_COPY_BYTES / sizeof(float), MATRIX_WORDS = ORDER * ORDER };
_Static_assert((2 * COPY_WORDS + 3 * MATRIX_WORDS) * sizeof(float) <= FT_CHECK_BYTES, "memory");

uint64_t ft_check_copy(struct ft_env *env, void *memory)
{
    float *from = memory, *to = from + COPY_WORDS;
    uint64_t begin = ft_now_ns(env);
    memcpy(to, from, FT_CHECK_COPY_BYTES);
    __asm__ volatile("" : : "r"(to) : "memory"); /* the copy is used */
    return ft_now_ns(env) - begin;
}

/* to += a * b, in an order that compilers make vectors of. */
static void multiply(const float *a, const float *b, float *restrict to)
{
    for (int i = 0; i < ORDER; i++)
        for (int k = 0; k < ORDER; k++)
            for (int j = 0; j < ORDER; j++)
                to[i * ORDER + j] += a[i * ORDER + k] * b[k * ORDER + j];
}

uint64_t ft_check_product(struct ft_env *env, void *memory)
{
    float *a = (float *)memory + 2 * COPY_WORDS, *b = a + MATRIX_WORDS, *to = b + MATRIX_WORDS;
    uint64_t begin = ft_now_ns(env);
    multiply(a, b, to);
    __asm__ volatile("" : : "r"(to) : "memory");
    return ft_now_ns(env) - begin;
}
