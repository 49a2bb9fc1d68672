/*
 * The answer to STATUS as text for people: the verdict first, then who is missing, then the
 * communicators; all ranks only if asked for.
 */
#include "ras/internal.h"

#include <inttypes.h>

#define MISSING_LINES 64 /* of a communicator */

static void add_head(struct ft_text *out, const struct ft_ras_look *look)
{
    char text[32];
    ft_ras_timestamp(text);
    ft_text_add(out, "FTCCL %s, as NCCL %s; %s\n%d processes looked at in %.3f s, of %d hosts\n\n",
                PACKAGE_VERSION, ft_ras_version(), text, look->snapshot->nengines,
                (double)(look->ended_ns - look->begun_ns) / 1e9,
                1 + look->round.n - look->round.silent);
}

static void add_verdicts(struct ft_text *out, const struct ft_ras_look *look)
{
    ft_text_add(out, "Verdict\n");
    for (int i = 0; i < look->found; i++)
        ft_text_add(out, "  %s: %s\n", ft_verdict_name(look->verdicts[i].kind),
                    look->verdicts[i].sentence);
    if (look->trouble[0])
        ft_text_add(out, "  cannot tell: %s\n", look->trouble);
    else if (look->found == 0)
        ft_text_add(out, "  healthy: no operation has waited for %d s\n", FT_RAS_AFTER_S);
    ft_text_add(out, "\n");
}

static const char *condition_of(const struct ft_ras_rank *rank)
{
    if (rank->dead)
        return "dead: its process has ended";
    if (rank->silent)
        return "unresponsive: its host did not answer";
    if (!rank->member)
        return "unresponsive: its host has no telemetry of it";
    return rank->engine->state == FT_PROCESS_GONE ? "dead: its process has ended"
                                                  : "unresponsive: its process is stopped";
}

static void add_missing_ranks(struct ft_text *out, const struct ft_ras_comm *comm)
{
    int lines = 0, elsewhere = comm->size - comm->nlisted;
    for (int i = 0; i < comm->nlisted; i++) {
        const struct ft_ras_rank *rank = &comm->ranks[i];
        elsewhere += rank->elsewhere;
        if (!ft_ras_is_missing(rank) || rank->elsewhere || lines == MISSING_LINES)
            continue;
        ft_text_add(out, "    rank %d", rank->rank);
        if (rank->engine)
            ft_text_add(out, " (pid %d on %s)", rank->pid, rank->engine->hostname);
        ft_text_add(out, " is %s\n", condition_of(rank));
        lines++;
    }
    if (elsewhere > 0)
        ft_text_add(out, "    %d ranks are on hosts that were not asked\n", elsewhere);
    if (comm->nmissing > lines + elsewhere)
        ft_text_add(out, "    and %d more are missing\n", comm->nmissing - lines - elsewhere);
}

static void add_ranks(struct ft_text *out, const struct ft_ras_comm *comm)
{
    for (int i = 0; i < comm->nlisted; i++) {
        const struct ft_ras_rank *rank = &comm->ranks[i];
        const struct ft_snap_member *m = rank->member;
        if (ft_ras_is_missing(rank))
            continue;
        ft_text_add(out,
                    "    rank %d (pid %d on %s): %" PRIu64 " collectives called, %" PRIu64
                    " started, %" PRIu64 " done%s%s\n",
                    rank->rank, rank->pid, rank->engine->hostname, m->called, m->started, m->done,
                    m->open ? "" : ", closed", m->failed ? ", failed" : "");
    }
}

void ft_ras_text(struct ft_text *out, const struct ft_ras_look *look,
                 const struct ft_ras_comms *comms, bool verbose)
{
    add_head(out, look);
    add_verdicts(out, look);
    ft_text_add(out, "Communicators: %d\n", comms->n);
    for (int i = 0; i < comms->n; i++) {
        const struct ft_ras_comm *comm = &comms->comms[i];
        ft_text_add(out, "  %016" PRIx64 "%s%s: %d ranks, %d present, %d missing\n", comm->ctx,
                    comm->name[0] ? " " : "", comm->name, comm->size, comm->nranks, comm->nmissing);
        add_missing_ranks(out, comm);
        if (verbose)
            add_ranks(out, comm);
    }
}
