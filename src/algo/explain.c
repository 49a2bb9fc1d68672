/* Prints the candidates of the selection and the steps of the chosen plan, for `ftccl-info
 * --plan`. */
#include "algo/choice.h"
#include "algo/parts.h"

#define STEPS_SHOWN 24

static const char *const buf_names[] = {"-", "in", "out", "tmp"};

static void explain_ref(FILE *out, const char *what, struct ft_ref ref)
{
    if (ref.buf != FT_BUF_NONE)
        fprintf(out, "  %s %s+%zu", what, buf_names[ref.buf], ref.off);
}

static void explain_peers(FILE *out, const char *what, int n, const int *peers)
{
    if (n > 0)
        fprintf(out, "  %s", what);
    for (int i = 0; i < n; i++)
        fprintf(out, "%c%d", i ? ',' : ' ', peers[i]);
}

static void explain_step(FILE *out, const struct ft_plan *plan, int lane, uint64_t index)
{
    struct ft_step s;
    ft_plan_step(plan, lane, index, &s);
    fprintf(out, "  %4llu:", (unsigned long long)index);
    if (s.nsend > 0) {
        fprintf(out, "  send %zu B %s+%zu", s.send_bytes, buf_names[s.send.buf], s.send.off);
        explain_peers(out, "to", s.nsend, s.send_to);
        if (s.len_bytes > 0)
            fputc(';', out);
    }
    if (s.len_bytes > 0) {
        fprintf(out, "  %zu B", s.len_bytes);
        explain_peers(out, "receive from", s.nrecv, s.recv_from);
        explain_ref(out, s.nrecv ? "with" : "take", s.src);
        explain_ref(out, "store", s.dst);
        explain_peers(out, "forward to", s.nfwd, s.fwd_to);
        if (s.flags & FT_STEP_FINAL)
            fprintf(out, "  (final)");
    }
    fprintf(out, "%s\n", s.nsend == 0 && s.len_bytes == 0 ? "  nothing" : "");
}

static void explain_plan(FILE *out, const struct ft_plan *plan)
{
    fprintf(out,
            "%s: %d lanes of %llu steps, %llu pieces of up to %zu bytes, %zu bytes of scratch\n",
            plan->algo->name, plan->nlanes, (unsigned long long)plan->nsteps,
            (unsigned long long)plan->npieces, plan->piece_elems * plan->esize, plan->tmp_bytes);
    fprintf(out, "rank %d, lane 0:\n", plan->view->rank);
    for (uint64_t i = 0; i < plan->nsteps && i < STEPS_SHOWN; i++)
        explain_step(out, plan, 0, i);
    if (plan->nsteps > STEPS_SHOWN)
        fprintf(out, "  ... and %llu more\n", (unsigned long long)plan->nsteps - STEPS_SHOWN);
}

int ft_algo_explain(FILE *out, const struct ft_view *view, const struct ft_coll *coll,
                    const struct ft_tuning *tuning)
{
    struct ft_plan plan;
    struct ft_choice parts[FT_CHOICE_PARTS];
    int status = ft_algo_select(view, coll, tuning, &plan);
    if (status != FT_OK)
        return status;
    status = ft_choice_parse(tuning->choice, parts);
    if (status != FT_OK)
        return status;
    fprintf(out, "%s of %zu x %s, %d ranks on %d hosts, chunks of %zu bytes, %d in flight\n",
            ft_kind_name(coll->kind), coll->count, ft_type_name(coll->type), view->nranks,
            view->nhosts, tuning->chunk_bytes, tuning->chunks);
    for (int i = 0; ft_algos[i]; i++) {
        const struct ft_algo *algo = ft_algos[i];
        if (!(algo->kinds & FT_KIND_BIT(coll->kind)))
            continue;
        fprintf(out, "%c %-10s", algo == plan.algo ? '*' : ' ', algo->name);
        if (!algo->fits(view, coll, tuning))
            fprintf(out, "does not fit\n");
        else
            fprintf(out, "%12.2f us%s\n", algo->cost_ns(view, coll, tuning) / 1e3,
                    ft_choice_allows(parts, coll->kind, i) ? "" : "  excluded by FTCCL_ALGO");
    }
    const struct ft_rule *rule = ft_rule_followed(view, coll, tuning, parts);
    if (rule)
        fprintf(out, "%s is what the tuning table names for this case\n", plan.algo->name);
    explain_plan(out, &plan);
    return FT_OK;
}
