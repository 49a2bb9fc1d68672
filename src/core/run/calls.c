/*
 * Finds calls that differ between ranks. Every message carries the signature of its call, and a
 * rank that waits for long tells the others in which call it is. Both are compared with the calls
 * that this rank made recently.
 */
#include "core/run/run.h"

#include <string.h>

void ft_calls_note(struct ft_comm *comm, const struct ft_op *op)
{
    comm->calls.history[op->seq % FT_HISTORY] = (struct ft_call){op->seq, ft_sig_call(op->sig)};
}

bool ft_mismatch_check(struct ft_comm *comm, int peer, uint64_t seq, uint64_t sig)
{
    if (!ft_comm_is_open(comm))
        return true;
    uint64_t mine = comm->calls.history[seq % FT_HISTORY].sig;
    sig = ft_sig_call(sig);
    if (seq == 0 || comm->calls.history[seq % FT_HISTORY].seq != seq || mine == sig)
        return false;
    char here[128], there[128];
    ft_sig_text(mine, here, sizeof here);
    ft_sig_text(sig, there, sizeof there);
    ft_comm_fail(comm, FT_MISMATCH, peer,
                 "ranks made different calls as operation %llu: rank %d %s, rank %d %s",
                 (unsigned long long)seq, comm->view.rank, here, peer, there);
    return true;
}

bool ft_calls_is_announced(const struct ft_comm *comm, uint64_t seq)
{
    bool is = false;
    for (int r = 0; comm->calls.any_announced && r < comm->view.nranks; r++)
        is |= comm->calls.announced[r].seq == seq;
    return is;
}

void ft_calls_check_announced(struct ft_comm *comm, const struct ft_op *op)
{
    for (int r = 0;
         comm->calls.any_announced && r < comm->view.nranks && comm->failure.status == FT_OK; r++)
        if (comm->calls.announced[r].seq == op->seq)
            ft_mismatch_check(comm, r, op->seq, comm->calls.announced[r].sig);
}

void ft_calls_reset(struct ft_comm *comm)
{
    struct ft_calls *calls = &comm->calls;
    memset(calls->announced, 0, (size_t)comm->view.nranks * sizeof *calls->announced);
    memset(calls->history, 0, sizeof calls->history);
    calls->any_announced = false;
}
