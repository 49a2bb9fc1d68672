/*
 * Checksums of messages and comparisons of results, see verify.c. Part of run.h.
 */
#ifndef FT_VERIFY_H
#define FT_VERIFY_H

/* What a receiver does before it uses a message: false if its checksum does not match, then comm
 * has failed. `op` is NULL for what is no operation's here. */
bool ft_verify_message(struct ft_comm *comm, int from, const struct ft_msg *msg,
                       const struct ft_op *op, uint64_t step);
static inline bool ft_verify_ok(struct ft_comm *comm, int from, const struct ft_msg *msg,
                                const struct ft_op *op, uint64_t step)
{
    return !comm->limits.verify || ft_verify_message(comm, from, msg, op, step);
}
/* of a comparison; FTCCL_ALGO is for calls of the user's */
int ft_verify_plan(struct ft_comm *comm, struct ft_plan *plan);
/* the next operation of its work compares its result */
bool ft_verify_follows(const struct ft_op *op);
/* a comparison begins: this rank's result is there. False: on the GPU, ask again */
bool ft_verify_digest(struct ft_comm *comm, struct ft_op *op);
/* all digests are here: both are done, or comm has failed */
void ft_verify_compare(struct ft_comm *comm, struct ft_op *op);
/* Tells in words which of the ranks' digests differ. True: some do; *odd is the first that has not
 * what most have, -1 if no value is that of most. */
bool ft_verify_differ(const uint32_t *digest, int nranks, int *odd, char *text, size_t len_bytes);

#endif
