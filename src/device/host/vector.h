/*
 * The vector kernels, written once with the compilers' vector types and compiled once per
 * instruction set. The including file sets FT_VEC (bytes of a vector) and the target, and defines
 * the few functions that differ:
 *   part_load, part_store: load and store the first n <= FT_VEC bytes of a vector;
 *   stream_vec, stream_half, stream_quarter: aligned non-temporal stores (FT_STREAMS 0: none);
 *   stream_fence: orders those stores before later ones;
 *   u16_widen, u8_widen: convert half or a quarter of a vector to 32-bit lanes;
 *   u16_narrow, u8_narrow: the reverse (no overflow);
 *   f16_widen, f16_narrow: convert half a vector of float16 to a vector of float32, and the
 *   reverse, which rounds to nearest even.
 * Everything is inlined into kernels whose type and operation are constants, so that the compiler
 * removes all switches.
 *
 * A kernel reads each source once and writes each destination once: it keeps BLOCK vectors in
 * registers while it goes through the sources. float16, bfloat16 and the 8-bit floats take half or
 * a quarter of a vector in memory.
 */
#include "device/host/host.h"
#include "device/host/minifloat.h"

#define INLINE static inline __attribute__((always_inline))
#define BLOCK 4
/* The compiler keeps an array of vectors in registers only if its loops are unrolled. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 4")
#endif

typedef uint8_t vec __attribute__((vector_size(FT_VEC), may_alias)); /* bits of any type */
typedef int8_t vec_i8 __attribute__((vector_size(FT_VEC)));
typedef int32_t vec_i32 __attribute__((vector_size(FT_VEC)));
typedef uint32_t vec_u32 __attribute__((vector_size(FT_VEC)));
typedef int64_t vec_i64 __attribute__((vector_size(FT_VEC)));
typedef uint64_t vec_u64 __attribute__((vector_size(FT_VEC)));
typedef float vec_f32 __attribute__((vector_size(FT_VEC)));
typedef double vec_f64 __attribute__((vector_size(FT_VEC)));
typedef uint16_t half_u16 __attribute__((vector_size(FT_VEC / 2), may_alias));
typedef uint8_t quarter_u8 __attribute__((vector_size(FT_VEC / 4), may_alias));
/* The same types without alignment. */
typedef uint8_t any_vec __attribute__((vector_size(FT_VEC), may_alias, aligned(1)));
typedef uint16_t any_half __attribute__((vector_size(FT_VEC / 2), may_alias, aligned(1)));
typedef uint8_t any_quarter __attribute__((vector_size(FT_VEC / 4), may_alias, aligned(1)));

/* One pass of one kernel. */
struct pass {
    const struct ft_reduce *r;
    enum ft_type type;
    enum ft_red red;
    uint32_t streams; /* bit d: dst[d] takes non-temporal stores */
    bool divide;
    vec scale, divisor;
};

INLINE vec part_load(const char *p, size_t n);
INLINE void part_store(char *p, vec v, size_t n);
INLINE void stream_vec(char *p, vec v);
INLINE void stream_half(char *p, half_u16 v);
INLINE void stream_quarter(char *p, quarter_u8 v);
INLINE void stream_fence(void);
INLINE vec_u32 u16_widen(half_u16 v);
INLINE half_u16 u16_narrow(vec_u32 v);
INLINE vec_u32 u8_widen(quarter_u8 v);
INLINE quarter_u8 u8_narrow(vec_u32 v);
INLINE vec f16_widen(half_u16 h);
INLINE half_u16 f16_narrow(vec x);

/* ---- lanes ----------------------------------------------------------------------------------- */

INLINE vec select_bits(vec mask, vec a, vec b)
{
    return (a & mask) | (b & ~mask);
}
INLINE vec splat_u32(uint32_t x)
{
    return (vec)((vec_u32){0} + x);
}
INLINE vec splat_u64(uint64_t x)
{
    return (vec)((vec_u64){0} + x);
}

INLINE size_t lane_bytes(enum ft_type type) /* bytes in memory that fill one vector */
{
    switch (type) {
    case FT_FLOAT16:
    case FT_BFLOAT16:
        return FT_VEC / 2;
    case FT_FLOAT8E4M3:
    case FT_FLOAT8E5M2:
        return FT_VEC / 4;
    default:
        return FT_VEC;
    }
}

INLINE vec mini_widen(struct ft_minifloat f, vec_u32 code)
{
    vec_u32 mag = code & ((1u << f.sign) - 1), sign = code >> f.sign << 31;
    vec_u32 normal = (mag << (23 - f.mant)) + ((uint32_t)(127 - f.bias) << 23);
    vec_f32 tiny = (vec_f32)splat_u32(ft_mini_tiny(f));
    vec small = (vec)(__builtin_convertvector((vec_i32)mag, vec_f32) * tiny);
    vec x = select_bits((vec)(mag < 1u << f.mant), small, (vec)normal);
    if (f.inf) {
        x = select_bits((vec)(mag == f.top), splat_u32(FT_F32_INF), x);
        x = select_bits((vec)(mag > f.top), splat_u32(FT_F32_NAN), x);
    } else {
        x = select_bits((vec)(mag == f.nan), splat_u32(FT_F32_NAN), x);
    }
    return x | (vec)sign;
}

INLINE vec_u32 mini_narrow(struct ft_minifloat f, vec x)
{
    int shift = 23 - f.mant;
    vec_u32 mag = (vec_u32)x & 0x7fffffffu, sign = (vec_u32)x >> 31 << f.sign;
    vec_f32 magic = (vec_f32)splat_u32(ft_mini_magic(f));
    vec_u32 small = (vec_u32)((vec_f32)mag + magic) - ft_mini_magic(f);
    vec_u32 normal = ((mag + ((1u << (shift - 1)) - 1) + (mag >> shift & 1)) >> shift) -
                     ((uint32_t)(127 - f.bias) << f.mant);
    vec code = select_bits((vec)((vec_i32)mag < (128 - f.bias) << 23), (vec)small, (vec)normal);
    code = select_bits((vec)((vec_i32)code > (int32_t)f.top), splat_u32(f.top), code);
    code |= (vec)sign;
    return (vec_u32)select_bits((vec)((vec_i32)mag > (int32_t)FT_F32_INF), splat_u32(f.nan), code);
}

/* vec_finish() has made all NaNs canonical. */
INLINE half_u16 bf16_narrow(vec x)
{
    vec_u32 bits = (vec_u32)x;
    return u16_narrow((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE vec vec_load(enum ft_type type, const char *p)
{
    switch (type) {
    case FT_FLOAT16:
        return f16_widen((half_u16) * (const any_half *)p);
    case FT_BFLOAT16:
        return (vec)(u16_widen((half_u16) * (const any_half *)p) << 16);
    case FT_FLOAT8E4M3:
        return mini_widen(FT_MINI_E4M3, u8_widen((quarter_u8) * (const any_quarter *)p));
    case FT_FLOAT8E5M2:
        return mini_widen(FT_MINI_E5M2, u8_widen((quarter_u8) * (const any_quarter *)p));
    default:
        return (vec) * (const any_vec *)p;
    }
}

INLINE void half_store(char *p, half_u16 v, bool stream)
{
    if (stream)
        stream_half(p, v);
    else
        *(any_half *)p = (any_half)v;
}

INLINE void quarter_store(char *p, vec_u32 code, bool stream)
{
    quarter_u8 v = u8_narrow(code);
    if (stream)
        stream_quarter(p, v);
    else
        *(any_quarter *)p = (any_quarter)v;
}

INLINE void vec_store(enum ft_type type, char *p, vec v, bool stream)
{
    switch (type) {
    case FT_FLOAT16:
        half_store(p, f16_narrow(v), stream);
        break;
    case FT_BFLOAT16:
        half_store(p, bf16_narrow(v), stream);
        break;
    case FT_FLOAT8E4M3:
        quarter_store(p, mini_narrow(FT_MINI_E4M3, v), stream);
        break;
    case FT_FLOAT8E5M2:
        quarter_store(p, mini_narrow(FT_MINI_E5M2, v), stream);
        break;
    default:
        if (stream)
            stream_vec(p, v);
        else
            *(any_vec *)p = (any_vec)v;
    }
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* As f32_extreme() in scalar.c. A result of all ones is a NaN; vec_finish() makes it canonical. */
#define EXTREME_FLOAT(F, I)                                                            \
    do {                                                                               \
        vec equal = (vec)((F)a == (F)b), nan = (vec)(((F)a != (F)a) | ((F)b != (F)b)); \
        vec first = max ? (vec)((F)a > (F)b) : (vec)((F)a < (F)b);                     \
        vec other = max ? b & (a | ~equal) : b | (a & equal);                          \
        return select_bits(first, a, other) | nan;                                     \
    } while (0)

#define EXTREME_INT(T) return select_bits(max ? (vec)((T)a > (T)b) : (vec)((T)a < (T)b), a, b)

INLINE vec vec_extreme(enum ft_type type, vec a, vec b, bool max)
{
    switch (type) {
    case FT_INT8:
        EXTREME_INT(vec_i8);
    case FT_UINT8:
        EXTREME_INT(vec);
    case FT_INT32:
        EXTREME_INT(vec_i32);
    case FT_UINT32:
        EXTREME_INT(vec_u32);
    case FT_INT64:
        EXTREME_INT(vec_i64);
    case FT_UINT64:
        EXTREME_INT(vec_u64);
    case FT_FLOAT64:
        EXTREME_FLOAT(vec_f64, vec_i64);
    default:
        EXTREME_FLOAT(vec_f32, vec_i32);
    }
}

#define ARITHMETIC(T) return red == FT_SUM ? (vec)((T)a + (T)b) : (vec)((T)a * (T)b)

INLINE vec vec_combine(enum ft_type type, enum ft_red red, vec a, vec b)
{
    if (red == FT_MAX || red == FT_MIN)
        return vec_extreme(type, a, b, red == FT_MAX);
    switch (type) {
    case FT_INT8:
    case FT_UINT8:
        ARITHMETIC(vec);
    case FT_INT32:
    case FT_UINT32:
        ARITHMETIC(vec_u32);
    case FT_INT64:
    case FT_UINT64:
        ARITHMETIC(vec_u64);
    case FT_FLOAT64:
        ARITHMETIC(vec_f64);
    default:
        ARITHMETIC(vec_f32);
    }
}

INLINE vec vec_scale_of(enum ft_type type, const struct ft_redop *op)
{
    switch (type) {
    case FT_INT8:
    case FT_UINT8:
        return (vec){0} + (uint8_t)op->scale.u64;
    case FT_INT32:
    case FT_UINT32:
        return splat_u32((uint32_t)op->scale.u64);
    case FT_INT64:
    case FT_UINT64:
    case FT_FLOAT64:
        return splat_u64(op->scale.u64);
    default:
        return splat_u32(ft_f32_bits(op->scale.f32));
    }
}

/* Divides a float average, and replaces every NaN by the canonical one: which operand's payload
 * survives depends on the processor. */
INLINE vec vec_finish(const struct pass *p, vec v)
{
    if (!ft_type_is_float(p->type))
        return v;
    if (p->type == FT_FLOAT64) {
        if (p->divide)
            v = (vec)((vec_f64)v / (vec_f64)p->divisor);
        return select_bits((vec)((vec_f64)v != (vec_f64)v), splat_u64(FT_F64_NAN), v);
    }
    if (p->divide)
        v = (vec)((vec_f32)v / (vec_f32)p->divisor);
    return select_bits((vec)((vec_f32)v != (vec_f32)v), splat_u32(FT_F32_NAN), v);
}

INLINE vec vec_divisor_of(enum ft_type type, uint32_t divisor)
{
    double wide = divisor;
    uint64_t bits;
    if (type != FT_FLOAT64)
        return splat_u32(ft_f32_bits((float)divisor));
    memcpy(&bits, &wide, sizeof bits);
    return splat_u64(bits);
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* Reduces n vectors from byte `at` on. */
INLINE void pass_vectors(const struct pass *p, size_t at, int n)
{
    const struct ft_reduce *r = p->r;
    size_t step = lane_bytes(p->type);
    vec acc[BLOCK];
    UNROLLED for (int u = 0; u < n; u++)
        acc[u] = vec_load(p->type, (const char *)r->src[0] + at + (size_t)u * step);
    if (r->scaled & 1)
        UNROLLED for (int u = 0; u < n; u++)
            acc[u] = vec_combine(p->type, FT_PROD, acc[u], p->scale);
    for (int k = 1; k < r->nsrc; k++) {
        const char *src = (const char *)r->src[k] + at;
        vec v[BLOCK];
        UNROLLED for (int u = 0; u < n; u++) v[u] = vec_load(p->type, src + (size_t)u * step);
        if (r->scaled >> k & 1)
            UNROLLED for (int u = 0; u < n; u++)
                v[u] = vec_combine(p->type, FT_PROD, v[u], p->scale);
        UNROLLED for (int u = 0; u < n; u++) acc[u] = vec_combine(p->type, p->red, acc[u], v[u]);
    }
    UNROLLED for (int u = 0; u < n; u++) acc[u] = vec_finish(p, acc[u]);
    for (int d = 0; d < r->ndst; d++) {
        char *dst = (char *)r->dst[d] + at;
        if (p->streams >> d & 1)
            UNROLLED for (int u = 0; u < n; u++)
                vec_store(p->type, dst + (size_t)u * step, acc[u], true);
        else
            UNROLLED for (int u = 0; u < n; u++)
                vec_store(p->type, dst + (size_t)u * step, acc[u], false);
    }
}

INLINE vec edge_load(enum ft_type type, const char *p, size_t n)
{
    vec raw = part_load(p, n);
    return vec_load(type, (const char *)&raw);
}

/* Reduces n bytes from byte `at` on, at most one vector. */
INLINE void pass_edge(const struct pass *p, size_t at, size_t n)
{
    const struct ft_reduce *r = p->r;
    vec acc = edge_load(p->type, (const char *)r->src[0] + at, n), raw = {0};
    if (r->scaled & 1)
        acc = vec_combine(p->type, FT_PROD, acc, p->scale);
    for (int k = 1; k < r->nsrc; k++) {
        vec v = edge_load(p->type, (const char *)r->src[k] + at, n);
        if (r->scaled >> k & 1)
            v = vec_combine(p->type, FT_PROD, v, p->scale);
        acc = vec_combine(p->type, p->red, acc, v);
    }
    vec_store(p->type, (char *)&raw, vec_finish(p, acc), false);
    for (int d = 0; d < r->ndst; d++)
        part_store((char *)r->dst[d] + at, raw, n);
}

INLINE void pass_long(const struct ft_reduce *r, enum ft_type type, enum ft_red red, size_t len)
{
    size_t step = lane_bytes(type), head = 0, at = 0;
    struct pass p = {.r = r, .type = type, .red = red, .divide = r->divide && r->op.divisor > 1};
    if (r->scaled)
        p.scale = vec_scale_of(type, &r->op);
    if (p.divide)
        p.divisor = vec_divisor_of(type, r->op.divisor);
    if (FT_STREAMS && r->streaming)
        p.streams = ft_host_streams(r, len, &head);
    while (at < len) {
        size_t left = (at < head ? head : len) - at;
        if (left < step) {
            pass_edge(&p, at, left);
            at += left;
        } else if (left < BLOCK * step || at < head) {
            struct pass q = p;
            q.streams = 0;
            pass_vectors(&q, at, 1);
            at += step;
        } else {
            size_t end = at + left / (BLOCK * step) * (BLOCK * step);
            for (; at < end; at += BLOCK * step)
                pass_vectors(&p, at, BLOCK);
        }
    }
    if (p.streams)
        stream_fence();
}

INLINE void kernel_run(const struct ft_reduce *r, enum ft_type type, enum ft_red red)
{
    size_t len = r->count * ft_host_size(type);
    const struct pass edge = {.r = r, .type = type, .red = red};
    /* small collectives: few instructions */
    if (len < lane_bytes(type) && !r->scaled && !r->divide)
        pass_edge(&edge, 0, len);
    else
        pass_long(r, type, red, len);
}

FT_HOST_TYPES(FT_HOST_KERNELS_OF)
