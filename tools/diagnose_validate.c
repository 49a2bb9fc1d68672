/*
 * Asks the ranks of this machine for a validation, waits for their results, and has them judged.
 * One rank is asked, by its telemetry file; it tells the others. Ranks of other machines take part,
 * and write their results there, from where the responder fetches them.
 */
#include "diagnose.h"

#include "ras/ras.h"
#include "telemetry/telemetry.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TAKEN_NS 10000000000u /* a rank that lives takes a request sooner */
#define QUIET_NS 62000000000u /* ranks wait a minute for a common collective */
#define LOOK_NS 10000000u
#define FETCH_S 4                 /* the responder gives other hosts half of it */
#define FETCH_AGAIN_NS 200000000u /* from one look at their results to the next */
/* What seems slow is measured again, and the fastest counts: on a busy machine a process may have
 * waited for a processor all the time. */
#define RUNS 3

/* One communicator: its members on this machine. */
struct subject {
    const struct ft_snapshot *s;
    const char *dir;
    uint64_t ctx;
    int *members; /* [n] indices of members, by rank */
    struct ft_validation *results;
    int n;
    struct ft_ask ask;
    bool busy;         /* the rank that is asked does what another program asks */
    char silence[256]; /* why other hosts did not tell; "": they were not asked, or did */
};

/* Who tells a result. engine: of the snapshot; -1: it is on another host. */
struct teller {
    int rank, engine, pid;
    uint64_t host;
};

static void set_trouble(struct report *report, const char *fmt, ...) FT_PRINTF(2, 3);
static void set_trouble(struct report *report, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!report->trouble[0])
        vsnprintf(report->trouble, sizeof report->trouble, fmt, args);
    va_end(args);
}

/* ---- which communicators --------------------------------------------------------------------- */

static bool is_slow(enum ft_verdict_kind kind)
{
    return kind == FT_VERDICT_NONCOMM_SLOW || kind == FT_VERDICT_COMM_SLOW_LINK ||
           kind == FT_VERDICT_COMM_SLOW_SOURCE || kind == FT_VERDICT_COMM_SLOW_DESTINATION;
}

struct choice {
    uint64_t ctx[MOST_VALIDATIONS];
    int n;
};

static void choose(struct choice *choice, uint64_t ctx)
{
    for (int i = 0; i < choice->n; i++)
        if (choice->ctx[i] == ctx)
            return;
    if (choice->n < MOST_VALIDATIONS)
        choice->ctx[choice->n++] = ctx;
}

/* The largest open communicator that has a rank of the engine. */
static const struct ft_snap_member *largest_of(const struct ft_snapshot *s, int engine)
{
    const struct ft_snap_member *best = NULL;
    for (const struct ft_snap_member *m = s->members; m < s->members + s->nmembers; m++)
        if (m->engine == engine && m->open && !m->failed && m->nranks > 1 &&
            (!best || m->nranks > best->nranks ||
             (m->nranks == best->nranks && m->opened_ns < best->opened_ns)))
            best = m;
    return best;
}

static void choose_all(const struct ft_snapshot *s, const struct report *report,
                       struct choice *choice)
{
    for (int i = 0; i < report->found; i++)
        if (is_slow(report->verdicts[i].kind))
            choose(choice, report->verdicts[i].culprits[0].ctx);
    for (int i = 0; i < s->nengines && report->found == 0; i++) {
        bool gone = s->engines[i].state == FT_PROCESS_GONE;
        const struct ft_snap_member *m = gone ? NULL : largest_of(s, i);
        if (m)
            choose(choice, m->ctx);
    }
}

/* ---- asking and waiting ---------------------------------------------------------------------- */

static bool path_of(const struct subject *subject, int nth, char *path, size_t size)
{
    const struct ft_snapshot *s = subject->s;
    const char *file = s->engines[s->members[subject->members[nth]].engine].file;
    return file[0] && snprintf(path, size, "%s/%s", subject->dir, file) < (int)size;
}

static bool has_ended(const struct ft_validation *result)
{
    return result->state == FT_VALIDATION_DONE || result->state == FT_VALIDATION_GIVEN_UP;
}

/* Reads the result of a rank, if there is one of this validation, or will be none. */
static void read_result(struct subject *subject, int nth)
{
    struct ft_validation now;
    char path[512];
    if (has_ended(&subject->results[nth]) || !path_of(subject, nth, path, sizeof path) ||
        ft_validation_read(path, &now) != FT_OK)
        return;
    bool mine = now.number == subject->ask.number && now.ctx == subject->ctx;
    if (mine || now.why == FT_WHY_GONE)
        subject->results[nth] = now;
    else if (nth == 0 && now.state != FT_VALIDATION_NONE && !has_ended(&now))
        subject->busy = true;
}

static int count_running(struct subject *subject)
{
    int left = 0;
    for (int i = 0; i < subject->n; i++) {
        read_result(subject, i);
        left += !has_ended(&subject->results[i]);
    }
    return left;
}

static bool have_all_measured(const struct subject *subject)
{
    int n = 0;
    while (n < subject->n && subject->results[n].state == FT_VALIDATION_DONE)
        n++;
    return n == subject->n;
}

/* In this time after the rank that was asked, all others end that ever will. */
static uint64_t rest_ns(const struct subject *subject)
{
    return subject->ask.pause_ms * 1000000u + 1000000000u;
}

/* Waits until all ranks of this machine have ended. A rank that has not ended when the one that was
 * asked has, and the time of the pause is over, does not any more. */
static void wait_for_results(struct subject *subject)
{
    const struct timespec pause = {0, LOOK_NS};
    const struct ft_validation *lead = &subject->results[0];
    uint64_t now = ft_now_ns(ft_env_real()), end = now + TAKEN_NS, quiet = now + QUIET_NS;
    for (int before = FT_VALIDATION_NONE; now < end && count_running(subject) > 0 && !subject->busy;
         now = ft_now_ns(ft_env_real())) {
        if (before == FT_VALIDATION_NONE && lead->state != FT_VALIDATION_NONE)
            end = quiet + rest_ns(subject);
        if (before < FT_VALIDATION_DONE && has_ended(lead))
            end = now + (lead->state == FT_VALIDATION_DONE ? rest_ns(subject) : LOOK_NS);
        before = lead->state;
        nanosleep(&pause, NULL);
    }
}

static int ask(struct subject *subject, double pause_s)
{
    char path[512];
    subject->ask = (struct ft_ask){.ctx = subject->ctx,
                                   .until_ns = ft_now_ns(ft_env_real()) + TAKEN_NS,
                                   .pause_ms = (uint64_t)(pause_s * 1e3)};
    while (subject->ask.number == 0)
        if (getrandom(&subject->ask.number, sizeof subject->ask.number, 0) < 0)
            return ft_fail(FT_SYSTEM, "no random number");
    return path_of(subject, 0, path, sizeof path)
               ? ft_validation_ask(path, &subject->ask)
               : ft_fail(FT_INVAL, "its telemetry file has no name");
}

/* ---- results --------------------------------------------------------------------------------- */

static const struct ft_snap_seat *find_seat(const struct subject *subject, int rank)
{
    const struct ft_snapshot *s = subject->s;
    for (int i = 0; i < s->nseats; i++)
        if (s->seats[i].ctx == subject->ctx && s->seats[i].rank == rank)
            return &s->seats[i];
    return NULL;
}

static bool is_same_host(const struct subject *subject, int rank, int other)
{
    const struct ft_snap_seat *a = find_seat(subject, rank), *b = find_seat(subject, other);
    return a && b && a->host == b->host;
}

static void add_link(const struct subject *subject, int rank, const struct ft_measured *from,
                     struct ft_tested *t)
{
    bool known = from->state != FT_MEASURED_NONE && from->state <= FT_MEASURED_SILENT &&
                 from->peer >= 0 && from->peer < t->size && from->peer != rank;
    if (!known)
        return;
    struct ft_tested_link *link = &t->links[t->nlinks++];
    *link = (struct ft_tested_link){.from = from->sends ? rank : from->peer,
                                    .to = from->sends ? from->peer : rank,
                                    .same_host = is_same_host(subject, rank, from->peer),
                                    .cut = from->state == FT_MEASURED_CUT};
    if (from->state != FT_MEASURED_SILENT && from->bytes > 0)
        link->s_per_mib = (double)from->ns / 1e9 / (double)from->bytes * (1 << 20);
    snprintf(link->transport, sizeof link->transport, "%.7s", from->transport);
    ft_text_clean(link->transport, sizeof link->transport);
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

static void keep_faster(uint64_t *best, uint64_t ns)
{
    if (*best == 0 || (ns > 0 && ns < *best))
        *best = ns;
}

/* The row of the rank; a new one in the first run. */
static struct ft_tested_rank *row_of(const struct teller *who, struct ft_tested *t)
{
    for (int i = 0; i < t->nranks; i++)
        if (t->ranks[i].rank == who->rank)
            return &t->ranks[i];
    struct ft_tested_rank *row = &t->ranks[t->nranks++];
    *row = (struct ft_tested_rank){
        .rank = who->rank, .engine = who->engine, .pid = who->pid, .host = who->host};
    return row;
}

/* There is room for a rank and its links. */
static void add_result(const struct subject *subject, const struct teller *who,
                       const struct ft_validation *from, struct ft_tested *t)
{
    if (from->state != FT_VALIDATION_DONE)
        return;
    struct ft_tested_rank *row = row_of(who, t);
    keep_faster(&row->copy_ns, from->copy_ns);
    keep_faster(&row->product_ns, from->product_ns);
    if (from->checks > 0)
        keep_faster(&row->mean_ns, from->check_ns / from->checks);
    row->gpu |= from->gpu != 0;
    t->seq = from->seq;
    t->pause_s = fmax(t->pause_s, seconds(from->held_ns, from->end_ns));
    t->waited_s = fmax(t->waited_s, seconds(from->held_ns, from->start_ns));
    for (int i = 0; i < from->nlinks; i++)
        add_link(subject, who->rank, &from->links[i], t);
}

static void add_results_here(const struct subject *subject, struct ft_tested *t)
{
    for (int i = 0; i < subject->n; i++) {
        const struct ft_snap_member *m = &subject->s->members[subject->members[i]];
        const struct ft_snap_engine *engine = &subject->s->engines[m->engine];
        add_result(subject, &(struct teller){m->rank, m->engine, engine->pid, engine->host},
                   &subject->results[i], t);
    }
}

/* ---- other hosts ----------------------------------------------------------------------------- */

static bool is_here(const struct subject *subject, int rank)
{
    for (int i = 0; i < subject->n; i++)
        if (subject->s->members[subject->members[i]].rank == rank)
            return true;
    return false;
}

/* Room for `more` ranks and their links. */
static bool make_room(struct ft_tested *t, int more)
{
    size_t nranks = (size_t)t->nranks + (size_t)more + 1,
           nlinks = (size_t)t->nlinks + (size_t)more * FT_MEASURED_MOST + 1;
    struct ft_tested_rank *ranks = realloc(t->ranks, nranks * sizeof *ranks);
    t->ranks = ranks ? ranks : t->ranks;
    struct ft_tested_link *links = realloc(t->links, nlinks * sizeof *links);
    t->links = links ? links : t->links;
    return ranks && links;
}

/* Is it a result of this validation, of a rank that has no file here? */
static bool is_far(const struct subject *subject, const struct ft_snap_validation *from,
                   const struct ft_tested *t)
{
    const struct ft_validation *is = &from->is;
    return is->number == subject->ask.number && is->ctx == subject->ctx && is->rank >= 0 &&
           is->rank < t->size && !is_here(subject, is->rank);
}

static int count_far(const struct subject *subject, const struct ft_snapshot *all,
                     const struct ft_tested *t)
{
    int n = 0;
    for (int i = 0; i < all->nvalidations; i++)
        n += is_far(subject, &all->validations[i], t);
    return n;
}

static void add_far(const struct subject *subject, const struct ft_snapshot *all,
                    struct ft_tested *t)
{
    for (int i = 0; i < all->nvalidations; i++) {
        const struct ft_snap_validation *from = &all->validations[i];
        const struct ft_snap_engine *engine = &all->engines[from->engine];
        if (is_far(subject, from, t))
            add_result(subject, &(struct teller){from->is.rank, -1, engine->pid, engine->host},
                       &from->is, t);
    }
}

/* One look at the results of other hosts. *told: how many there are. They are added if they are
 * all, or if it is the last look. FT_LINK: nobody answered; FT_NOMEM. */
static int look_far(struct subject *subject, struct ft_tested *t, bool last, int *told)
{
    struct ft_snapshot *all;
    int rc = FT_OK;
    if (ft_ras_fetch(FETCH_S, &all) != FT_OK) {
        snprintf(subject->silence, sizeof subject->silence, "; %.200s", ft_fail_text());
        return FT_LINK;
    }
    *told = count_far(subject, all, t);
    last |= subject->n + *told >= t->size;
    if (last && make_room(t, *told))
        add_far(subject, all, t);
    else if (last)
        rc = ft_fail(FT_NOMEM, "no memory for the results of %d ranks", *told);
    ft_snapshot_free(all);
    return rc;
}

/* Fetches the results of ranks of other hosts until all have told. They may end later than those
 * here by the time of the pause, and are not waited for longer. FT_NOMEM. */
static int fetch_far(struct subject *subject, struct ft_tested *t)
{
    const struct timespec pause = {0, FETCH_AGAIN_NS};
    const uint64_t end_ns = ft_now_ns(ft_env_real()) + rest_ns(subject);
    int rc = FT_OK, told = 0;
    bool last = false;
    subject->silence[0] = '\0';
    while (rc == FT_OK && !last && subject->n + told < t->size) {
        last = ft_now_ns(ft_env_real()) >= end_ns;
        rc = look_far(subject, t, last, &told);
        if (rc == FT_OK && !last && subject->n + told < t->size)
            nanosleep(&pause, NULL);
    }
    return rc == FT_NOMEM ? rc : FT_OK;
}

static const char *name_of(const struct subject *subject)
{
    const char *name = subject->s->members[subject->members[0]].name;
    return name[0] ? name : "without a name";
}

/* Why nothing was measured. */
static void explain_lead(const struct subject *subject, struct report *report)
{
    const struct ft_validation *lead = &subject->results[0];
    const struct ft_snap_member *m = &subject->s->members[subject->members[0]];
    if (lead->state == FT_VALIDATION_NONE)
        set_trouble(report, "rank %d of communicator %.39s (pid %d) %s", m->rank, name_of(subject),
                    subject->s->engines[m->engine].pid,
                    subject->busy ? "is being validated for another program"
                                  : "did not take the request");
    if (lead->state == FT_VALIDATION_GIVEN_UP)
        set_trouble(report, "the validation of communicator %.39s was given up: %s",
                    name_of(subject), ft_validation_why_text(lead->why));
}

/* Expects the ranks of `t` in order. Returns false if none is missing. */
static bool list_missing(const struct ft_tested *t, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (int r = 0, i = 0; r < t->size; r++) {
        bool told = i < t->nranks && t->ranks[i].rank == r;
        i += told;
        if (told)
            continue;
        if (at + 32 > size) {
            snprintf(text + at, size - at, " and more");
            return true;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%d", at ? ", " : "", r);
    }
    return at > 0;
}

static void explain_missing(const struct subject *subject, const struct ft_tested *t,
                            struct report *report)
{
    char ranks[128];
    explain_lead(subject, report);
    if (list_missing(t, ranks, sizeof ranks))
        set_trouble(report,
                    "the validation of communicator %.39s has no results of ranks %s: their hosts "
                    "did not tell, they are stopped, or did not come%s",
                    name_of(subject), ranks, subject->silence);
    for (int i = 0; i < t->nlinks && t->links[i].s_per_mib <= 0; i++)
        set_trouble(report, "in the validation nothing came from rank %d to rank %d",
                    t->links[i].from, t->links[i].to);
}

/* Adds verdicts that the report does not have. */
static void add_verdicts(const struct ft_verdict *more, int n, struct report *report)
{
    for (int i = 0; i < n && report->found < MOST_VERDICTS; i++) {
        const struct ft_culprit *who = &more[i].culprits[0];
        bool known = false;
        for (int k = 0; k < report->found; k++) {
            const struct ft_verdict *v = &report->verdicts[k];
            known |= v->kind == more[i].kind && v->culprits[0].ctx == who->ctx &&
                     v->culprits[0].rank == who->rank && v->culprits[0].peer == who->peer;
        }
        if (!known)
            report->verdicts[report->found++] = more[i];
    }
}

/* ---- one communicator ------------------------------------------------------------------------ */

static int by_rank(const void *a, const void *b, void *arg)
{
    const struct ft_snap_member *members = arg;
    return members[*(const int *)a].rank - members[*(const int *)b].rank;
}

static bool open_subject(struct subject *subject, struct ft_tested *t)
{
    const struct ft_snapshot *s = subject->s;
    size_t n = (size_t)s->nmembers;
    subject->members = calloc(n, sizeof *subject->members);
    subject->results = calloc(n, sizeof *subject->results);
    for (int i = 0; i < s->nmembers && subject->members; i++)
        if (s->members[i].ctx == subject->ctx && s->members[i].open)
            subject->members[subject->n++] = i;
    size_t found = (size_t)subject->n;
    if (!subject->results || found == 0)
        return false;
    qsort_r(subject->members, found, sizeof *subject->members, by_rank, s->members);
    t->ctx = subject->ctx;
    t->size = s->members[subject->members[0]].nranks;
    snprintf(t->name, sizeof t->name, "%s", name_of(subject));
    return true;
}

/* Returns the number of verdicts, or a status: the sentence says what prevents it. */
static int run_once(struct subject *subject, double pause_s, struct ft_tested *t,
                    struct ft_verdict *verdicts)
{
    memset(subject->results, 0, (size_t)subject->n * sizeof *subject->results);
    int rc = ask(subject, pause_s);
    if (rc != FT_OK)
        return rc;
    wait_for_results(subject);
    if (!make_room(t, subject->n))
        return FT_NOMEM;
    add_results_here(subject, t);
    if (subject->results[0].state == FT_VALIDATION_DONE)
        rc = fetch_far(subject, t);
    if (rc != FT_OK)
        return rc;
    t->runs += subject->results[0].state == FT_VALIDATION_DONE;
    return ft_diagnose_tested(t, verdicts, MOST_VERDICTS);
}

static void validate_one(struct subject *subject, double pause_s, struct report *report)
{
    struct ft_tested *t = &report->tested[report->ntested++];
    struct ft_verdict *verdicts = calloc(MOST_VERDICTS, sizeof *verdicts);
    int found = verdicts && open_subject(subject, t) ? 1 : FT_NOMEM;
    bool again = found > 0;
    for (int i = 0; again && i < RUNS; i++) {
        found = run_once(subject, pause_s, t, verdicts);
        again = found > 0 && have_all_measured(subject);
    }
    if (found < 0)
        set_trouble(report, "cannot validate: %.200s",
                    found == FT_NOMEM ? "no memory" : ft_fail_text());
    else {
        if (t->runs == RUNS && again) { /* what one look finds may be chance */
            ft_verdicts_place(subject->s, verdicts, found);
            add_verdicts(verdicts, found, report);
        }
        explain_missing(subject, t, report);
    }
    if (t->nranks == 0) { /* nothing was measured: the trouble says why */
        report->ntested--;
        free(t->links);
        free(t->ranks);
    }
    free(verdicts);
    free(subject->members);
    free(subject->results);
}

void validate(const struct ft_snapshot *s, const char *dir, double pause_s, struct report *report)
{
    struct choice choice = {.n = 0};
    choose_all(s, report, &choice);
    report->tested = calloc(MOST_VALIDATIONS, sizeof *report->tested);
    if (!report->tested)
        set_trouble(report, "no memory for a validation");
    else if (choice.n == 0)
        set_trouble(report, report->found > 0
                                ? "not validated: the job hangs"
                                : "there is no communicator of several ranks to validate");
    for (int i = 0; i < choice.n && report->tested; i++)
        validate_one(&(struct subject){.s = s, .dir = dir, .ctx = choice.ctx[i]}, pause_s, report);
}

void free_validations(struct report *report)
{
    for (int i = 0; i < report->ntested; i++) {
        free(report->tested[i].links);
        free(report->tested[i].ranks);
    }
    free(report->tested);
    report->tested = NULL;
}
