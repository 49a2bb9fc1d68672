/*
 * CRC32C (Castagnoli; the polynomial of iSCSI, RFC 3720 appendix B.4). It uses the processor's
 * instruction if there is one, else tables that take eight bytes at a time. The instruction has a
 * latency of three cycles and a throughput of one, so three blocks are summed in parallel and then
 * joined. Joining works because a checksum is linear: tables give the effect of appending a block
 * of zeros.
 */
#include "base/base.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL 0x82f63b78u /* the polynomial with its bits reversed */
#define LONG_BYTES 2048        /* length of each of the three blocks */
#define SHORT_BYTES 128

typedef uint32_t sum_fn(uint32_t state, const unsigned char *p, size_t len_bytes);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t table[8][256];
/* [byte of the state][its value]: the state after LONG_BYTES or SHORT_BYTES zeros */
static uint32_t past_long[4][256], past_short[4][256];
static sum_fn *best;

static uint32_t by_table(uint32_t state, const unsigned char *p, size_t len_bytes)
{
    for (; len_bytes >= 8; p += 8, len_bytes -= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = __builtin_bswap32(low);
        high = __builtin_bswap32(high);
#endif
        low ^= state;
        state = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
                table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
                table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; len_bytes > 0; p++, len_bytes--)
        state = table[0][(state ^ *p) & 255] ^ state >> 8;
    return state;
}

static void fill_past(uint32_t past[4][256], size_t zeros)
{
    static const unsigned char nothing[LONG_BYTES];
    uint32_t bit[32];
    for (int i = 0; i < 32; i++)
        bit[i] = by_table(UINT32_C(1) << i, nothing, zeros);
    for (uint32_t i = 0; i < 4 * 256; i++)
        for (int b = 0; b < 8; b++)
            if (i & 1u << b)
                past[i >> 8][i & 255] ^= bit[8 * (i >> 8) + (uint32_t)b];
}

/* Three blocks at a time. Each block is an independent chain of instructions. */
#define BLOCKS(len, past)                                                        \
    for (; len_bytes >= 3 * (len); p += 3 * (len), len_bytes -= 3 * (len)) {     \
        word_t a = state, b = 0, c = 0;                                          \
        for (size_t i = 0; i < (len); i += 8) {                                  \
            a = STEP8(a, word_at(p + i));                                        \
            b = STEP8(b, word_at(p + (len) + i));                                \
            c = STEP8(c, word_at(p + 2 * (len) + i));                            \
        }                                                                        \
        state = skip(past, skip(past, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c; \
    }

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))

static inline uint64_t word_at(const unsigned char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint32_t skip(uint32_t past[4][256], uint32_t state)
{
    return past[0][state & 255] ^ past[1][state >> 8 & 255] ^ past[2][state >> 16 & 255] ^
           past[3][state >> 24];
}

#if defined(__x86_64__)
typedef uint64_t word_t;
#define STEP8(state, word) _mm_crc32_u64(state, word)
#define STEP1(state, byte) _mm_crc32_u8(state, byte)
#define TARGET "sse4.2"
static bool has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#else
typedef uint32_t word_t;
#define STEP8(state, word) __crc32cd(state, word)
#define STEP1(state, byte) __crc32cb(state, byte)
#define TARGET "+crc"
static bool has_instruction(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

__attribute__((target(TARGET))) static uint32_t by_instruction(uint32_t state,
                                                               const unsigned char *p,
                                                               size_t len_bytes)
{
    BLOCKS((size_t)LONG_BYTES, past_long)
    BLOCKS((size_t)SHORT_BYTES, past_short)
    word_t wide = state;
    for (; len_bytes >= 8; p += 8, len_bytes -= 8)
        wide = STEP8(wide, word_at(p));
    state = (uint32_t)wide;
    for (; len_bytes > 0; p++, len_bytes--)
        state = STEP1(state, *p);
    return state;
}

#else
static bool has_instruction(void)
{
    return false;
}
#define by_instruction by_table
#endif

static void prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t state = i;
        for (int b = 0; b < 8; b++)
            state = state >> 1 ^ (state & 1 ? POLYNOMIAL : 0);
        table[0][i] = state;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            table[k][i] = table[0][table[k - 1][i] & 255] ^ table[k - 1][i] >> 8;
    fill_past(past_long, LONG_BYTES);
    fill_past(past_short, SHORT_BYTES);
    best = has_instruction() ? by_instruction : by_table;
}

uint32_t ft_crc32c(uint32_t crc, const void *data, size_t len_bytes)
{
    pthread_once(&once, prepare);
    return ~best(~crc, data, len_bytes);
}

uint32_t ft_crc32c_table(uint32_t crc, const void *data, size_t len_bytes)
{
    pthread_once(&once, prepare);
    return ~by_table(~crc, data, len_bytes);
}
