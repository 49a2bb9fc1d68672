/*
 * Executes a command with all threads of a kernel: thread `unit` of `units` does its share. The
 * code is the same for the kernel and for its version on the host, which the tests run. If all
 * operands have the same alignment modulo 16, all bytes but the edges are processed in words of 16
 * bytes, several of them in flight per thread: few threads have to keep the memory busy. Otherwise
 * it works on single elements, read byte by byte because they may be unaligned.
 */
#ifndef FT_CUDA_PASS_H
#define FT_CUDA_PASS_H

#include "command.h"
#include "numbers.h"

namespace ft
{

struct alignas(16) Word {
    uint32_t part[4];
};

template <typename T> FT_FN T load_any(uint64_t from)
{
    T x;
#ifdef __CUDACC__
    if (from % sizeof(T) == 0)
        return *(const T *)from;
    unsigned char *bytes = (unsigned char *)&x;
    for (unsigned i = 0; i < sizeof(T); i++)
        bytes[i] = ((const volatile unsigned char *)from)[i];
#else
    memcpy(&x, (const void *)from, sizeof x);
#endif
    return x;
}

template <typename T> FT_FN void store_any(uint64_t to, T x)
{
#ifdef __CUDACC__
    if (to % sizeof(T) == 0) {
        *(T *)to = x;
        return;
    }
    const unsigned char *bytes = (const unsigned char *)&x;
    for (unsigned i = 0; i < sizeof(T); i++)
        ((volatile unsigned char *)to)[i] = bytes[i];
#else
    memcpy((void *)to, &x, sizeof x);
#endif
}

FT_FN Word load_word(uint64_t from)
{
    Word w;
#ifdef __CUDACC__
    *(uint4 *)&w = *(const uint4 *)from;
#else
    memcpy(&w, (const void *)from, sizeof w);
#endif
    return w;
}

FT_FN void store_word(uint64_t to, const Word &w)
{
#ifdef __CUDACC__
    *(uint4 *)to = *(const uint4 *)&w;
#else
    memcpy((void *)to, &w, sizeof w);
#endif
}

/* Number of bytes before the first word; all bytes if words cannot be used. */
FT_FN uint64_t head_of(const ft_cuda_command &c, uint64_t len, uint64_t size)
{
    uint64_t differ = 0, head = (0 - c.src[0]) % 16;
    for (int k = 1; k < c.nsrc; k++)
        differ |= c.src[k] ^ c.src[0];
    for (int d = 0; d < c.ndst; d++)
        differ |= c.dst[d] ^ c.src[0];
    return differ % 16 != 0 || head % size != 0 || head > len ? len : head;
}

/* Copies words at `at`, `at + stride`, ... */
template <int WORDS> FT_FN void copy_words(const ft_cuda_command &c, uint64_t at, uint64_t stride)
{
    Word word[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; w++)
        word[w] = load_word(c.src[0] + at + w * stride);
    for (int d = 0; d < c.ndst; d++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            store_word(c.dst[d] + at + w * stride, word[w]);
}

FT_FN void copy_byte(const ft_cuda_command &c, uint64_t at)
{
    unsigned char byte = load_any<unsigned char>(c.src[0] + at);
    for (int d = 0; d < c.ndst; d++)
        store_any(c.dst[d] + at, byte);
}

/* Copies `count` bytes. */
FT_APART inline void copy(const ft_cuda_command &c, uint64_t unit, uint64_t units)
{
    const int in_flight = 8;
    uint64_t len = c.count, head = head_of(c, len, 1), nwords = (len - head) / 16,
             stride = 16 * units, w = unit;
    for (uint64_t at = unit; at < head; at += units)
        copy_byte(c, at);
    for (; w + (in_flight - 1) * units < nwords; w += in_flight * units)
        copy_words<in_flight>(c, head + 16 * w, stride);
    for (; w < nwords; w += units)
        copy_words<1>(c, head + 16 * w, stride);
    for (uint64_t at = head + 16 * nwords + unit; at < len; at += units)
        copy_byte(c, at);
}

template <int TYPE, int RED> struct Pass {
    typedef Number<TYPE> N;
    typedef typename N::raw raw;
    typedef typename N::value value;
    static const int per_word = 16 / sizeof(raw);
    /* an 8-bit element takes four times as much space in registers */
    static const int in_flight = sizeof(raw) == 1 ? 1 : 4;

    static FT_FN value scale_of(const ft_cuda_command &c)
    {
        return c.scale_from ? N::widen(load_any<raw>(c.scale_from)) : N::scale_of(c.scale);
    }

    static FT_APART void element(const ft_cuda_command &c, uint64_t at, value by)
    {
        value sum = N::widen(load_any<raw>(c.src[0] + at));
        if (c.scaled & 1)
            sum = N::scale(sum, by);
        for (int k = 1; k < c.nsrc; k++) {
            value x = N::widen(load_any<raw>(c.src[k] + at));
            if (c.scaled >> k & 1)
                x = N::scale(x, by);
            sum = N::template combine<RED>(sum, x);
        }
        if (c.divisor > 1)
            sum = N::divide(sum, c.divisor);
        for (int d = 0; d < c.ndst; d++)
            store_any<raw>(c.dst[d] + at, N::narrow(sum));
    }

    static FT_FN void widen(value (&out)[per_word], const Word &word, bool scaled, value by)
    {
        raw each[per_word];
        memcpy(each, &word, sizeof each);
#pragma unroll
        for (int i = 0; i < per_word; i++) {
            out[i] = N::widen(each[i]);
            if (scaled)
                out[i] = N::scale(out[i], by);
        }
    }

    /* Reduces words at `at`, `at + stride`, ... */
    template <int WORDS>
    static FT_FN void words(const ft_cuda_command &c, uint64_t at, uint64_t stride, value by)
    {
        value sum[WORDS][per_word], x[per_word];
        Word word[WORDS];
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            word[w] = load_word(c.src[0] + at + w * stride);
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            widen(sum[w], word[w], c.scaled & 1, by);
        for (int k = 1; k < c.nsrc; k++) {
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[w] = load_word(c.src[k] + at + w * stride);
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                widen(x, word[w], c.scaled >> k & 1, by);
#pragma unroll
                for (int i = 0; i < per_word; i++)
                    sum[w][i] = N::template combine<RED>(sum[w][i], x[i]);
            }
        }
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            raw each[per_word];
#pragma unroll
            for (int i = 0; i < per_word; i++)
                each[i] = N::narrow(sum[w][i]);
            memcpy(&word[w], each, sizeof each);
        }
        for (int d = 0; d < c.ndst; d++)
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                store_word(c.dst[d] + at + w * stride, word[w]);
    }

    /* Integer averages are computed element by element: dividing all elements of a word would
     * double the kernel's size. */
    static FT_APART void run(const ft_cuda_command &c, uint64_t unit, uint64_t units)
    {
        uint64_t len = c.count * sizeof(raw),
                 head = c.divisor > 1 ? len : head_of(c, len, sizeof(raw)),
                 nwords = (len - head) / 16, tail = head + 16 * nwords;
        value by = c.scaled ? scale_of(c) : value();
        for (uint64_t at = unit * sizeof(raw); at < head; at += units * sizeof(raw))
            element(c, at, by);
        uint64_t w = unit, stride = 16 * units;
        for (; w + (in_flight - 1) * units < nwords; w += in_flight * units)
            words<in_flight>(c, head + 16 * w, stride, by);
        for (; w < nwords; w += units)
            words<1>(c, head + 16 * w, stride, by);
        for (uint64_t at = tail + unit * sizeof(raw); at < len; at += units * sizeof(raw))
            element(c, at, by);
    }
};

template <int TYPE> FT_FN void pass_of(const ft_cuda_command &c, uint64_t unit, uint64_t units)
{
    switch (c.red) {
    case SUM:
        Pass<TYPE, SUM>::run(c, unit, units);
        break;
    case PROD:
        Pass<TYPE, PROD>::run(c, unit, units);
        break;
    case MAX:
        Pass<TYPE, MAX>::run(c, unit, units);
        break;
    default:
        Pass<TYPE, MIN>::run(c, unit, units);
        break;
    }
}

/* A copy has type UINT8: it moves bits. */
FT_FN void execute(const ft_cuda_command &c, uint64_t unit, uint64_t units)
{
    if (c.nsrc == 1 && c.type == UINT8 && !c.scaled && c.divisor <= 1) {
        copy(c, unit, units);
        return;
    }
    switch (c.type) {
    case INT8:
        pass_of<INT8>(c, unit, units);
        break;
    case UINT8:
        pass_of<UINT8>(c, unit, units);
        break;
    case INT32:
        pass_of<INT32>(c, unit, units);
        break;
    case UINT32:
        pass_of<UINT32>(c, unit, units);
        break;
    case INT64:
        pass_of<INT64>(c, unit, units);
        break;
    case UINT64:
        pass_of<UINT64>(c, unit, units);
        break;
    case FLOAT16:
        pass_of<FLOAT16>(c, unit, units);
        break;
    case FLOAT32:
        pass_of<FLOAT32>(c, unit, units);
        break;
    case FLOAT64:
        pass_of<FLOAT64>(c, unit, units);
        break;
    case BFLOAT16:
        pass_of<BFLOAT16>(c, unit, units);
        break;
    case FLOAT8E4M3:
        pass_of<FLOAT8E4M3>(c, unit, units);
        break;
    default:
        pass_of<FLOAT8E5M2>(c, unit, units);
        break;
    }
}

/* The run for which a block works. */
struct Run {
    const ft_cuda_gate *gate;
    uint64_t number;
};

/* A captured kernel starts, for one bell; `mine` is its thread block. A muted bell does not ring:
 * nobody waits for it. Host provides take(), which adds one for all threads of the device and
 * returns the old value, load() (acquire), store() (release), now_ns() and pause(). */
template <typename Host>
FT_FN uint64_t take_ticket(ft_cuda_control *control, ft_cuda_bell *bell, uint64_t id, unsigned mine)
{
    if (Host::load(&bell->gate.ended) == FT_CUDA_MUTE)
        return FT_CUDA_MUTE;
    uint64_t ticket = Host::take(&bell->tickets[mine]) + 1;
    if (mine != 0)
        return ticket;
    uint64_t ring = Host::take(&control->rings);
    Host::store(&control->rang[ring % FT_CUDA_RINGS], (ring / FT_CUDA_RINGS + 1) << 32 | id);
    return ticket;
}

/* The first thread of a block waits here until its run begins. It touches nothing of the queue
 * before. Returns 1: the run has begun; 0: the run is over; -1: the engine was silent for bound_ns
 * (0: no bound), so its process is gone or stuck. */
template <typename Host> FT_FN int wait_begin(Run run, uint64_t bound_ns)
{
    uint64_t since = Host::now_ns();
    for (;;) {
        if (Host::load(&run.gate->ended) >= run.number)
            return 0;
        if (Host::load(&run.gate->begun) >= run.number)
            return 1;
        if (bound_ns && Host::now_ns() - since > bound_ns)
            return -1;
        Host::pause();
    }
}

/* Then it waits for commands. Returns 1: the command after `done` is there; 0 and -1 as above. A
 * command of a later run is posted after this run has ended. So, with this order of the loads, a
 * block that sees such a command also sees the end. */
template <typename Host>
FT_FN int wait_command(const ft_cuda_control *control, Run run, uint64_t done, uint64_t bound_ns)
{
    uint64_t since = Host::now_ns();
    for (;;) {
        uint64_t posted = Host::load(&control->posted);
        if (Host::load(&run.gate->ended) >= run.number)
            return 0;
        if (posted > done)
            return 1;
        if (bound_ns && Host::now_ns() - since > bound_ns)
            return -1;
        Host::pause();
    }
}

} /* namespace ft */

#endif
