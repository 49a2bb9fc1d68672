/*
 * Makes signatures of calls, and text of signatures.
 */
#include "base/base.h"

/* Bits of a signature: kind 4, type 4, red 3, root 17, count 35, FT_SIG_VERIFY. */
#define SIG_COUNT_MAX ((UINT64_C(1) << 35) - 1)

uint64_t ft_sig(const struct ft_coll *coll)
{
    enum ft_kind kind = coll->kind == FT_RECV ? FT_SEND : coll->kind;
    uint64_t red = ft_kind_reduces(kind) ? (uint64_t)coll->red : 0;
    uint64_t root = !ft_kind_is_collective(kind) ? 0 : (uint64_t)coll->root & 0x1ffff;
    uint64_t count = coll->count < SIG_COUNT_MAX ? coll->count : SIG_COUNT_MAX;
    return (uint64_t)kind | (uint64_t)coll->type << 4 | red << 8 | root << 11 | count << 28;
}

void ft_sig_text(uint64_t sig, char *buf, size_t len_bytes)
{
    if (ft_sig_call(sig) != sig) {
        int n = snprintf(buf, len_bytes, "comparing the results of ");
        ft_sig_text(ft_sig_call(sig), buf + ft_min((size_t)n, len_bytes),
                    len_bytes - ft_min((size_t)n, len_bytes));
        return;
    }
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    enum ft_type type = (enum ft_type)(sig >> 4 & 15);
    enum ft_red red = (enum ft_red)(sig >> 8 & 7);
    unsigned root = (unsigned)(sig >> 11 & 0x1ffff);
    unsigned long long count = ft_sig_count(sig);
    if (kind == FT_ALLGATHER && root != 0) {
        snprintf(buf, len_bytes, root == FT_SPLIT_MARK ? "CommSplit" : "CommWindowRegister");
        return;
    }
    int n = snprintf(buf, len_bytes, "%s(count %llu, %s", ft_kind_name(kind), count,
                     ft_type_name(type));
    size_t at = ft_min((size_t)n, len_bytes);
    if (ft_kind_reduces(kind))
        n = snprintf(buf + at, len_bytes - at, ", %s", ft_red_name(red)),
        at = ft_min(at + (size_t)n, len_bytes);
    bool rooted = kind == FT_BROADCAST || kind == FT_REDUCE || kind == FT_GATHER ||
                  kind == FT_SCATTER;
    if (rooted)
        n = snprintf(buf + at, len_bytes - at, ", root %u", root),
        at = ft_min(at + (size_t)n, len_bytes);
    snprintf(buf + at, len_bytes - at, ")");
}
