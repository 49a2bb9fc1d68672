/*
 * Every rank names the first cause of a failure, also where all ranks exit at their first error. A
 * rank that fails writes why on the liveness page of its process before users see the failure.
 * Ranks on other hosts cannot see that page: the failure is shown when they have been told, or
 * after TELL_NS. A rank that loses another rank asks what that rank knew before it blames it. It
 * looks for notices that have come and at the liveness pages, and waits at most ASK_NS for a notice
 * that may be under way. If an operation does not end, ranks wait for each other in a row: the last
 * of the row has the fault.
 */
#include "core/group/group.h"

/* At most this long for what others know, and this long until others know what this rank knows,
 * from the first sign of a failure until users see it. A sender needs less to connect, also on a
 * busy machine. */
#define ASK_NS 30000000u
#define TELL_NS 50000000u

/* The lost rank's end came over one link. The other one, on which it speaks, may still bring why;
 * or it is just connecting for that. */
static bool may_speak(const struct ft_comm *comm, int rank)
{
    const struct ft_peer *peer = comm->peers[rank];
    if (ft_peer_is_fenced(peer) || peer->watch.page || peer->departed ||
        comm->group->gone[rank].left)
        return false;
    return !peer->rx || peer->rx->state != FT_LINK_DOWN;
}

static void ask(struct ft_comm *comm, uint64_t since_ns)
{
    bool waits = since_ns < ASK_NS && may_speak(comm, comm->failure.culprit);
    ft_comm_ask_pages(comm);
    if (ft_comm_is_open(comm) && !waits)
        ft_comm_blame(comm);
}

void ft_cause_turn(struct ft_comm *comm)
{
    uint64_t now = ft_now_ns(comm->engine->env);
    if (comm->group->failing_ns == 0)
        comm->group->failing_ns = now;
    uint64_t since_ns = now - comm->group->failing_ns;
    if (ft_comm_state(comm) == FT_COMM_ASKING)
        ask(comm, since_ns);
    else if (since_ns >= TELL_NS || (!comm->failure.fresh && !ft_notice_owes(comm)))
        ft_comm_show_verdict(comm);
}

/* Of a circle it is the one whose word is oldest: the others spoke again when something moved. */
static int oldest_of_circle(const struct ft_comm *comm, int in)
{
    const struct ft_announced *announced = comm->calls.announced;
    int oldest = in, at = in;
    do {
        if (announced[at].said_ns < announced[oldest].said_ns)
            oldest = at;
        at = announced[at].waits_for;
    } while (at != in);
    return oldest;
}

int ft_cause_of_wait(const struct ft_comm *comm, int rank)
{
    int at = rank;
    for (int n = 0; n < comm->view.nranks && at >= 0; n++) {
        if (at == comm->view.rank)
            return rank;
        if (!comm->calls.announced[at].waits)
            return at;
        at = comm->calls.announced[at].waits_for;
    }
    return at < 0 ? rank : oldest_of_circle(comm, at);
}
