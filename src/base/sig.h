/*
 * Signatures: a call in 64 bits, for messages, records and the comparison of ranks.
 */
#ifndef FT_SIG_H
#define FT_SIG_H

/* The signature of a call: kind, type, operator, root and count in 64 bits, so that a peer's call
 * can be named. Counts from 2^35-1 on have the same signature. A receive has the signature of the
 * matching send. */
#define FT_SPLIT_MARK 1  /* root of the AllGather that exchanges the colors of a split */
#define FT_WINDOW_MARK 2 /* root of the AllGather that registers a window */
uint64_t ft_sig(const struct ft_coll *coll);
/* The signature of a comparison is that of its collective, with this bit added. */
#define FT_SIG_VERIFY (UINT64_C(1) << 63)
static inline uint64_t ft_sig_call(uint64_t sig)
{
    return sig & ~FT_SIG_VERIFY;
}
/* Elements of the call. */
static inline uint64_t ft_sig_count(uint64_t sig)
{
    return ft_sig_call(sig) >> 28;
}
/* For example "AllReduce(count 4, float32, sum)". */
void ft_sig_text(uint64_t sig, char *buf, size_t len_bytes);

#endif
