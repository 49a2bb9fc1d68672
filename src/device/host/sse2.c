/*
 * The vector kernels for every x86-64: vectors of 16 bytes, float16 by integer arithmetic.
 */
#include "device/host/host.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#define FT_VEC 16
#define FT_STREAMS 0
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
    *(any_vec *)p = (any_vec)v;
}
INLINE void stream_half(char *p, half_u16 v)
{
    *(any_half *)p = (any_half)v;
}
INLINE void stream_quarter(char *p, quarter_u8 v)
{
    *(any_quarter *)p = (any_quarter)v;
}
INLINE void stream_fence(void)
{
}
INLINE vec_u32 u16_widen(half_u16 v)
{
    return (vec_u32)_mm_unpacklo_epi16(_mm_cvtsi64_si128((long long)v), _mm_setzero_si128());
}
INLINE half_u16 u16_narrow(vec_u32 v)
{
    /* sign-extended, so that packing keeps the bits */
    __m128i same = _mm_srai_epi32(_mm_slli_epi32((__m128i)v, 16), 16);
    return (half_u16)_mm_cvtsi128_si64(_mm_packs_epi32(same, same));
}
INLINE vec_u32 u8_widen(quarter_u8 v)
{
    int bytes;
    memcpy(&bytes, &v, sizeof bytes);
    __m128i zero = _mm_setzero_si128(), words = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero);
    return (vec_u32)_mm_unpacklo_epi16(words, zero);
}
INLINE quarter_u8 u8_narrow(vec_u32 v)
{
    __m128i words = _mm_packs_epi32((__m128i)v, (__m128i)v);
    int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    quarter_u8 q;
    memcpy(&q, &bytes, sizeof q);
    return q;
}
INLINE vec f16_widen(half_u16 h)
{
    return mini_widen(FT_MINI_F16, u16_widen(h));
}
INLINE half_u16 f16_narrow(vec x)
{
    return u16_narrow(mini_narrow(FT_MINI_F16, x));
}

static bool usable(void)
{
    return true;
}

const struct ft_host_isa ft_host_sse2 = {
    .name = "sse2", .usable = usable, .kernel = {FT_HOST_TYPES(FT_HOST_ROW)}};
#else
static bool usable(void)
{
    return false;
}
const struct ft_host_isa ft_host_sse2 = {.name = "sse2", .usable = usable};
#endif
