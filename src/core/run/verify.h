/*
 * Checksums of messages and comparisons of results, see verify.c. Part of run.h.
 */
#ifndef FT_VERIFY_H
#define FT_VERIFY_H

/* Checks a message before the receiver uses it. False: the checksum does not match, and comm has
 * failed. `op` is NULL if the message belongs to no operation of this rank. */
bool ft_verify_message(struct ft_comm *comm, int from, const struct ft_msg *msg,
                       const struct ft_op *op, uint64_t step);
static inline bool ft_verify_ok(struct ft_comm *comm, int from, const struct ft_msg *msg,
                                const struct ft_op *op, uint64_t step)
{
    return !comm->limits.verify || ft_verify_message(comm, from, msg, op, step);
}
/* The plan of comparisons. FTCCL_ALGO does not apply to it. */
int ft_verify_plan(struct ft_comm *comm, struct ft_plan *plan);
/* True: the next operation of its work compares its result. */
bool ft_verify_follows(const struct ft_op *op);
/* A comparison begins: takes the digest of this rank's result. False: the result has not
 * been read yet, call again. */
bool ft_verify_digest(struct ft_comm *comm, struct ft_op *op);
/* All digests are here: both operations are done, or comm has failed. */
void ft_verify_compare(struct ft_comm *comm, struct ft_op *op);
/* Says in words which ranks have other digests. True: some have; *odd is the first rank that
 * differs from the majority, or -1 if no value has a majority. */
bool ft_verify_differ(const uint32_t *digest, int nranks, int *odd, char *text, size_t len_bytes);

#endif
