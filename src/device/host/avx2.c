/*
 * The vector kernels for x86-64 with AVX2 and F16C: vectors of 32 bytes.
 */
#include "device/host/host.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define FT_VEC 32
#define FT_STREAMS 1
#include "device/host/vector.h"

INLINE vec part_load(const char *p, size_t n)
{
    vec v = {0};
    uint64_t eight;
    /* A small message. A memcpy of variable length would stall the load that follows. */
    if (n == sizeof eight) {
        memcpy(&eight, p, sizeof eight);
        return (vec)(vec_u64){eight};
    }
    memcpy(&v, p, n);
    return v;
}
INLINE void part_store(char *p, vec v, size_t n)
{
    uint64_t eight = ((vec_u64)v)[0];
    if (n == sizeof eight)
        memcpy(p, &eight, sizeof eight);
    else
        memcpy(p, &v, n);
}
INLINE void stream_vec(char *p, vec v)
{
    _mm256_stream_si256((__m256i *)(void *)p, (__m256i)v);
}
INLINE void stream_half(char *p, half_u16 v)
{
    _mm_stream_si128((__m128i *)(void *)p, (__m128i)v);
}
INLINE void stream_quarter(char *p, quarter_u8 v)
{
    _mm_stream_si64((long long *)(void *)p, (long long)v);
}
INLINE void stream_fence(void)
{
    _mm_sfence();
}
INLINE vec_u32 u16_widen(half_u16 v)
{
    return (vec_u32)_mm256_cvtepu16_epi32((__m128i)v);
}
INLINE half_u16 u16_narrow(vec_u32 v)
{
    __m256i words = _mm256_packus_epi32((__m256i)v, (__m256i)v); /* the words of each half, twice */
    return (half_u16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 8));
}
INLINE vec_u32 u8_widen(quarter_u8 v)
{
    return (vec_u32)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)v));
}
INLINE quarter_u8 u8_narrow(vec_u32 v)
{
    __m256i words = _mm256_packus_epi32((__m256i)v, (__m256i)v),
            bytes = _mm256_packus_epi16(words, words);
    __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes),
                                      _mm256_extracti128_si256(bytes, 1));
    return (quarter_u8)_mm_cvtsi128_si64(both);
}
INLINE vec f16_widen(half_u16 h)
{
    return (vec)_mm256_cvtph_ps((__m128i)h);
}
INLINE half_u16 f16_narrow(vec x)
{
    return (half_u16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#ifdef __clang__
#pragma clang attribute pop
#endif

static bool usable(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const struct ft_host_isa ft_host_avx2 = {
    .name = "avx2", .usable = usable, .streams = true, .kernel = {FT_HOST_TYPES(FT_HOST_ROW)}};
#else
static bool usable(void)
{
    return false;
}
const struct ft_host_isa ft_host_avx2 = {.name = "avx2", .usable = usable};
#endif
