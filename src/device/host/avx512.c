/*
 * The vector kernels for x86-64 with AVX-512 (F, BW, DQ, VL): vectors of 64 bytes, masks at the
 * edges.
 */
#include "device/host/host.h"

#if defined(__x86_64__)
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#define FT_VEC 64
#define FT_STREAMS 1
#include "device/host/vector.h"

static inline __mmask64 first_bytes(size_t n)
{
    return n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
}
INLINE vec part_load(const char *p, size_t n)
{
    return (vec)_mm512_maskz_loadu_epi8(first_bytes(n), p);
}
INLINE void part_store(char *p, vec v, size_t n)
{
    _mm512_mask_storeu_epi8(p, first_bytes(n), (__m512i)v);
}
INLINE void stream_vec(char *p, vec v)
{
    _mm512_stream_si512((__m512i *)(void *)p, (__m512i)v);
}
INLINE void stream_half(char *p, half_u16 v)
{
    _mm256_stream_si256((__m256i *)(void *)p, (__m256i)v);
}
INLINE void stream_quarter(char *p, quarter_u8 v)
{
    _mm_stream_si128((__m128i *)(void *)p, (__m128i)v);
}
INLINE void stream_fence(void)
{
    _mm_sfence();
}
INLINE vec_u32 u16_widen(half_u16 v)
{
    return (vec_u32)_mm512_cvtepu16_epi32((__m256i)v);
}
INLINE half_u16 u16_narrow(vec_u32 v)
{
    return (half_u16)_mm512_cvtepi32_epi16((__m512i)v);
}
INLINE vec_u32 u8_widen(quarter_u8 v)
{
    return (vec_u32)_mm512_cvtepu8_epi32((__m128i)v);
}
INLINE quarter_u8 u8_narrow(vec_u32 v)
{
    return (quarter_u8)_mm512_cvtepi32_epi8((__m512i)v);
}
INLINE vec f16_widen(half_u16 h)
{
    return (vec)_mm512_cvtph_ps((__m256i)h);
}
INLINE half_u16 f16_narrow(vec x)
{
    return (half_u16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#ifdef __clang__
#pragma clang attribute pop
#endif

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const struct ft_host_isa ft_host_avx512 = {
    .name = "avx512", .usable = usable, .streams = true, .kernel = {FT_HOST_TYPES(FT_HOST_ROW)}};
#else
static bool usable(void)
{
    return false;
}
const struct ft_host_isa ft_host_avx512 = {.name = "avx512", .usable = usable};
#endif
