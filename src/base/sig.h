/*
 * Signatures: a call in 64 bits, for messages, records and the comparison of ranks.
 */
#ifndef FT_SIG_H
#define FT_SIG_H

/* The signature of a call: kind, type, operator, root and count in 64 bits, so that a peer's call
 * can be named. Counts from 2^36-1 on have the same signature. A receive has the signature of the
 * matching send. */
#define FT_SPLIT_MARK 1  /* root of the AllGather that exchanges the colors of a split */
#define FT_WINDOW_MARK 2 /* root of the AllGather that registers a window */
uint64_t ft_sig(const struct ft_coll *coll);
/* The signature of a comparison is that of its collective, with these bits added. No kind has both
 * bits. */
#define FT_SIG_VERIFY UINT64_C(12)
_Static_assert(FT_KINDS <= 12, "kinds are told from FT_SIG_VERIFY");
static inline uint64_t ft_sig_call(uint64_t sig)
{
    return (sig & FT_SIG_VERIFY) == FT_SIG_VERIFY ? sig & ~FT_SIG_VERIFY : sig;
}
/* For example "AllReduce(count 4, float32, sum)". */
void ft_sig_text(uint64_t sig, char *buf, size_t len_bytes);

#endif
