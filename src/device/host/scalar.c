/*
 * The reference kernels: one element after another, in plain C, for any processor. The vector
 * kernels give the same bits.
 */
#include "device/host/host.h"
#include "device/host/minifloat.h"

union num {
    float f32;
    double f64;
    uint64_t u64; /* integers, sign-extended if signed */
};

static inline __attribute__((always_inline)) bool is_f32(enum ft_type type)
{
    return ft_type_is_float(type) && type != FT_FLOAT64;
}

#define GET(T)                     \
    ({                             \
        T x_;                      \
        memcpy(&x_, p, sizeof x_); \
        x_;                        \
    })
static inline __attribute__((always_inline)) union num num_load(enum ft_type type, const char *p)
{
    switch (type) {
    case FT_INT8:
        return (union num){.u64 = (uint64_t)GET(int8_t)};
    case FT_UINT8:
        return (union num){.u64 = GET(uint8_t)};
    case FT_INT32:
        return (union num){.u64 = (uint64_t)GET(int32_t)};
    case FT_UINT32:
        return (union num){.u64 = GET(uint32_t)};
    case FT_FLOAT16:
        return (union num){.f32 = ft_mini_widen(FT_MINI_F16, GET(uint16_t))};
    case FT_FLOAT32:
        return (union num){.f32 = GET(float)};
    case FT_FLOAT64:
        return (union num){.f64 = GET(double)};
    case FT_BFLOAT16:
        return (union num){.f32 = ft_bf16_widen(GET(uint16_t))};
    case FT_FLOAT8E4M3:
        return (union num){.f32 = ft_mini_widen(FT_MINI_E4M3, GET(uint8_t))};
    case FT_FLOAT8E5M2:
        return (union num){.f32 = ft_mini_widen(FT_MINI_E5M2, GET(uint8_t))};
    default:
        return (union num){.u64 = GET(uint64_t)};
    }
}

#define PUT(T, value)              \
    ({                             \
        T x_ = (T)(value);         \
        memcpy(p, &x_, sizeof x_); \
    })
static inline __attribute__((always_inline)) void num_store(enum ft_type type, char *p, union num v)
{
    switch (type) {
    case FT_INT8:
    case FT_UINT8:
        PUT(uint8_t, v.u64);
        break;
    case FT_INT32:
    case FT_UINT32:
        PUT(uint32_t, v.u64);
        break;
    case FT_FLOAT16:
        PUT(uint16_t, ft_mini_narrow(FT_MINI_F16, v.f32));
        break;
    case FT_FLOAT32:
        PUT(uint32_t, v.f32 != v.f32 ? FT_F32_NAN : ft_f32_bits(v.f32));
        break;
    case FT_FLOAT64:
        PUT(uint64_t, v.f64 != v.f64 ? FT_F64_NAN : v.u64);
        break;
    case FT_BFLOAT16:
        PUT(uint16_t, ft_bf16_narrow(v.f32));
        break;
    case FT_FLOAT8E4M3:
        PUT(uint8_t, ft_mini_narrow(FT_MINI_E4M3, v.f32));
        break;
    case FT_FLOAT8E5M2:
        PUT(uint8_t, ft_mini_narrow(FT_MINI_E5M2, v.f32));
        break;
    default:
        PUT(uint64_t, v.u64);
        break;
    }
}

/* +0 counts as larger than -0. Numbers that are equal and not zero have equal bits. */
static inline float f32_extreme(float a, float b, bool max)
{
    if (a != a || b != b)
        return ft_f32_of_bits(FT_F32_NAN);
    uint32_t x = ft_f32_bits(a), y = ft_f32_bits(b);
    if (a == b)
        return ft_f32_of_bits(max ? x & y : x | y);
    return (a > b) == max ? a : b;
}

static inline union num f64_extreme(union num a, union num b, bool max)
{
    if (a.f64 != a.f64 || b.f64 != b.f64)
        return (union num){.u64 = FT_F64_NAN};
    if (a.f64 == b.f64)
        return (union num){.u64 = max ? a.u64 & b.u64 : a.u64 | b.u64};
    return (a.f64 > b.f64) == max ? a : b;
}

static inline __attribute__((always_inline)) union num num_combine(enum ft_type type,
                                                                   enum ft_red red, union num a,
                                                                   union num b)
{
    bool max = red == FT_MAX, sign = type == FT_INT8 || type == FT_INT32 || type == FT_INT64;
    if (is_f32(type)) {
        if (red == FT_SUM)
            return (union num){.f32 = a.f32 + b.f32};
        if (red == FT_PROD)
            return (union num){.f32 = a.f32 * b.f32};
        return (union num){.f32 = f32_extreme(a.f32, b.f32, max)};
    }
    if (type == FT_FLOAT64) {
        if (red == FT_SUM)
            return (union num){.f64 = a.f64 + b.f64};
        if (red == FT_PROD)
            return (union num){.f64 = a.f64 * b.f64};
        return f64_extreme(a, b, max);
    }
    if (red == FT_SUM)
        return (union num){.u64 = a.u64 + b.u64};
    if (red == FT_PROD)
        return (union num){.u64 = a.u64 * b.u64};
    bool more = sign ? (int64_t)a.u64 > (int64_t)b.u64 : a.u64 > b.u64;
    return more == max ? a : b;
}

static inline __attribute__((always_inline)) union num num_scale(enum ft_type type, union num v,
                                                                 const struct ft_redop *op)
{
    if (is_f32(type))
        return (union num){.f32 = v.f32 * op->scale.f32};
    if (type == FT_FLOAT64)
        return (union num){.f64 = v.f64 * op->scale.f64};
    v.u64 *= op->scale.u64;
    /* A shorter integer wraps before it is compared. */
    switch (type) {
    case FT_INT8:
        return (union num){.u64 = (uint64_t)(int8_t)v.u64};
    case FT_UINT8:
        return (union num){.u64 = (uint8_t)v.u64};
    case FT_INT32:
        return (union num){.u64 = (uint64_t)(int32_t)v.u64};
    case FT_UINT32:
        return (union num){.u64 = (uint32_t)v.u64};
    default:
        return v;
    }
}

static inline __attribute__((always_inline)) void kernel_run(const struct ft_reduce *r,
                                                             enum ft_type type, enum ft_red red)
{
    size_t size = ft_host_size(type);
    bool divide = r->divide && r->op.divisor > 1;
    for (size_t at = 0; at < r->count * size; at += size) {
        union num sum = num_load(type, (const char *)r->src[0] + at);
        if (r->scaled & 1)
            sum = num_scale(type, sum, &r->op);
        for (int k = 1; k < r->nsrc; k++) {
            union num v = num_load(type, (const char *)r->src[k] + at);
            if (r->scaled >> k & 1)
                v = num_scale(type, v, &r->op);
            sum = num_combine(type, red, sum, v);
        }
        if (divide && is_f32(type))
            sum.f32 /= (float)r->op.divisor;
        if (divide && type == FT_FLOAT64)
            sum.f64 /= (double)r->op.divisor;
        for (int d = 0; d < r->ndst; d++)
            num_store(type, (char *)r->dst[d] + at, sum);
    }
}

FT_HOST_TYPES(FT_HOST_KERNELS_OF)

static bool usable(void)
{
    return true;
}

const struct ft_host_isa ft_host_scalar = {
    .name = "scalar", .usable = usable, .kernel = {FT_HOST_TYPES(FT_HOST_ROW)}};
