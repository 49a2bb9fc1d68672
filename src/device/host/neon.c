/*
 * The vector kernels for 64-bit ARM: vectors of 16 bytes, no non-temporal stores.
 */
#include "device/host/host.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#define FT_VEC 16
#define FT_STREAMS 0
#include "device/host/vector.h"

INLINE vec part_load(const char *p, size_t n)
{
    vec v = {0};
    memcpy(&v, p, n);
    return v;
}
INLINE void part_store(char *p, vec v, size_t n)
{
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
    return (vec_u32)vmovl_u16((uint16x4_t)v);
}
INLINE half_u16 u16_narrow(vec_u32 v)
{
    return (half_u16)vmovn_u32((uint32x4_t)v);
}
INLINE vec_u32 u8_widen(quarter_u8 v)
{
    uint32_t bytes;
    memcpy(&bytes, &v, sizeof bytes);
    return (vec_u32)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}
INLINE quarter_u8 u8_narrow(vec_u32 v)
{
    uint16x4_t words = vmovn_u32((uint32x4_t)v);
    uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    quarter_u8 q;
    memcpy(&q, &bytes, sizeof q);
    return q;
}
INLINE vec f16_widen(half_u16 h)
{
    return (vec)vcvt_f32_f16((float16x4_t)h);
}
INLINE half_u16 f16_narrow(vec x)
{
    return (half_u16)vcvt_f16_f32((float32x4_t)x);
}

static bool usable(void)
{
    return true;
}

const struct ft_host_isa ft_host_neon = {
    .name = "neon", .usable = usable, .kernel = {FT_HOST_TYPES(FT_HOST_ROW)}};
#else
static bool usable(void)
{
    return false;
}
const struct ft_host_isa ft_host_neon = {.name = "neon", .usable = usable};
#endif
