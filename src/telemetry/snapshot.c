/*
 * Makes a snapshot for the diagnosis of the telemetry files of this host, or of those that were
 * saved at another moment. A file whose rank is stopped or dead tells as much as that of one that
 * runs. What cannot be read is counted, and the diagnosis then knows that ranks are missing.
 */
#include "collect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPS_KEPT 1024 /* operations of a member */

/* ---- processes ------------------------------------------------------------------------------- */

enum ft_process_state ft_tm_process_state(const struct ft_tm_header *h, char *letter)
{
    uint64_t start;
    if (h->pid_ns == 0 || h->pid_ns != ft_tm_pid_ns())
        return FT_PROCESS_UNKNOWN;
    if (!ft_tm_process((int)h->pid, letter, &start) || start != h->pid_start)
        return FT_PROCESS_GONE;
    if (*letter == 'Z' || *letter == 'X')
        return FT_PROCESS_GONE;
    return FT_PROCESS_RUNS;
}

void ft_tm_look(const struct ft_tm_header *h, struct ft_tm_seen *out)
{
    char letter = '?';
    *out = (struct ft_tm_seen){.state = ft_tm_process_state(h, &letter)};
    ft_process_look((int)h->pid, letter, out);
}

static int add_engine(struct ft_tm_collection *c, const struct ft_tm_header *h,
                      const struct ft_tm_seen *seen)
{
    struct ft_snap_engine *engine = ft_tm_list_add(c, &c->engines);
    if (!engine)
        return -1;
    engine->id = h->engine;
    engine->host = h->host;
    engine->pid = (int)h->pid;
    engine->state = seen->state;
    memcpy(engine->doing, seen->doing, sizeof engine->doing);
    memcpy(engine->hostname, h->hostname, sizeof engine->hostname);
    memcpy(engine->program, h->program, sizeof engine->program);
    return c->engines.n - 1;
}

/* ---- communicators --------------------------------------------------------------------------- */

static uint64_t signature(const struct ft_tm_op *r)
{
    struct ft_coll coll = {.kind = (enum ft_kind)r->kind,
                           .type = (enum ft_type)r->type,
                           .red = (enum ft_red)r->red,
                           .root = r->root,
                           .count = r->count};
    return r->kind < FT_KINDS ? ft_sig(&coll) : 0;
}

static void count_calls(const struct ft_tm_comm *row, struct ft_snap_member *m)
{
    m->called = m->started = m->done = row->before;
    for (int kind = 0; kind < FT_KINDS; kind++) {
        bool collective = ft_kind_is_collective((enum ft_kind)kind),
             p2p = kind == FT_SEND || kind == FT_RECV;
        if (!collective && !p2p)
            continue;
        *(p2p ? &m->p2p_called : &m->called) += row->queued[kind] + row->at_once[kind];
        *(p2p ? &m->p2p_started : &m->started) += row->begun[kind] + row->at_once[kind];
        *(p2p ? &m->p2p_done : &m->done) += row->done[kind];
        m->kind_called[kind] = ft_max(row->queued[kind], row->begun[kind]) + row->at_once[kind];
        m->kind_done[kind] = row->done[kind];
    }
    /* After a change of epoch the queue holds calls that this row has not counted. */
    m->called = ft_max(m->called, m->started);
    m->p2p_called = ft_max(m->p2p_called, m->p2p_started);
}

static void note_running(const struct ft_tm_op *r, struct ft_snap_member *m)
{
    m->running_sig = signature(r);
    m->running_seq = r->kind < FT_KINDS && ft_kind_is_collective((enum ft_kind)r->kind) ? r->seq
                                                                                        : 0;
    m->running_since_ns = r->time_ns[FT_TM_STARTED];
    m->wait.step = r->wait >> FT_TM_STEP_SHIFT;
    m->wait.sends = r->wait & FT_TM_SENDS;
    m->wait.peer = (int)(r->wait & FT_TM_PEER_MASK) - 1;
}

static void add_op(struct ft_tm_collection *c, const struct ft_tm_op *r)
{
    struct ft_snap_op *op = ft_tm_list_add(c, &c->ops);
    if (op)
        *op = (struct ft_snap_op){.member = c->members.n - 1,
                                  .peer = r->root,
                                  .seq = r->seq,
                                  .sig = signature(r),
                                  .receives = r->kind == FT_RECV,
                                  .done = r->state == FT_OP_DONE,
                                  .called_ns = r->time_ns[FT_TM_CREATED],
                                  .started_ns = r->time_ns[FT_TM_STARTED],
                                  .ended_ns = r->time_ns[FT_TM_ENDED]};
}

static int by_start(const void *a, const void *b)
{
    const struct ft_snap_op *x = a, *y = b;
    return x->started_ns < y->started_ns ? -1 : x->started_ns > y->started_ns;
}

/* Leaves the latest operations of the member that was added last. */
static void trim_ops(struct ft_tm_collection *c, int first)
{
    struct ft_snap_op *ops = c->ops.rows;
    int n = c->ops.n - first;
    if (n == 0)
        return;
    qsort(ops + first, (size_t)n, sizeof *ops, by_start);
    if (n > OPS_KEPT)
        memmove(ops + first, ops + c->ops.n - OPS_KEPT, OPS_KEPT * sizeof *ops);
    c->ops.n = first + (int)ft_min(n, OPS_KEPT);
}

/* The operations of the row: the first that runs, and the latest of all, unless a later call waits
 * in a queue. */
static void look_at_ops(struct ft_tm_collection *c, const struct ft_image *image, int row,
                        struct ft_snap_member *m)
{
    uint64_t first = UINT64_MAX;
    int ops = c->ops.n;
    for (int i = 0; i < FT_TM_OPS; i++) {
        const struct ft_tm_op *r = &image->file.op[i];
        if (r->serial == 0 || image->op_torn[i] || r->comm != row || r->ctx != m->ctx)
            continue;
        bool runs = r->state == FT_OP_RUNNING || r->state == FT_OP_DRAINING;
        if (runs && r->serial < first) {
            first = r->serial;
            note_running(r, m);
        }
        if (r->time_ns[FT_TM_CREATED] > m->last.called_ns)
            m->last = (struct ft_snap_call){.sig = signature(r),
                                            .called_ns = r->time_ns[FT_TM_CREATED]};
        if (r->kind <= FT_RECV && r->time_ns[FT_TM_STARTED])
            add_op(c, r);
    }
    trim_ops(c, ops);
}

/* The marks are read before their number is read again: those that were overwritten meanwhile are
 * left out. */
static void add_steps(struct ft_tm_collection *c, const struct ft_tm_comm *row)
{
    uint64_t kept = ft_min(row->marks, FT_TM_STEPS - 1);
    for (uint64_t n = row->marks - kept; n + 1 < row->marks; n++) {
        uint64_t begin_ns = row->mark_ns[n % FT_TM_STEPS],
                 end_ns = row->mark_ns[(n + 1) % FT_TM_STEPS];
        struct ft_snap_step *step = end_ns >= begin_ns ? ft_tm_list_add(c, &c->steps) : NULL;
        if (step)
            *step = (struct ft_snap_step){c->members.n - 1, n, begin_ns, end_ns};
    }
}

static void add_member(struct ft_tm_collection *c, const struct ft_image *image, int row,
                       int engine)
{
    const struct ft_tm_comm *from = &image->file.comm[row];
    struct ft_snap_member *m = ft_tm_list_add(c, &c->members);
    if (!m)
        return;
    m->ctx = from->ctx;
    m->engine = engine;
    m->rank = from->rank;
    m->nranks = from->nranks;
    memcpy(m->name, from->name, sizeof m->name);
    m->open = from->state == FT_TM_OPEN;
    m->joins = from->state == FT_TM_JOINING;
    m->opened_ns = from->opened_ns;
    m->arrived = m->joins ? (int)ft_min(from->issued, INT32_MAX) : 0;
    m->failed = from->phase == FT_COMM_FAILED;
    m->status = from->status;
    m->culprit = from->culprit;
    m->progress_ns = from->progress_ns;
    m->agree_ns = from->agree_ns;
    m->agree_call = from->agree_call < FT_AGREE_CALLS ? (int)from->agree_call : 0;
    m->wait.peer = -1;
    m->last = (struct ft_snap_call){.sig = from->call_sig,
                                    .called_ns = from->call_ns,
                                    .site = from->call_site,
                                    .tid = from->call_tid};
    count_calls(from, m);
    look_at_ops(c, image, row, m);
    add_steps(c, from);
}

static enum ft_news news_of(int state)
{
    switch (state) {
    case FT_PEER_LOST:
    case FT_PEER_UNREACHABLE:
        return FT_NEWS_LOST;
    case FT_PEER_LEFT:
        return FT_NEWS_LEFT;
    case FT_PEER_DEAD:
        return FT_NEWS_DEAD;
    default:
        return FT_NEWS_NONE;
    }
}

/* Notes the latest event of each peer in its seats from `first` on. */
static void add_news(struct ft_tm_collection *c, const struct ft_image *image, int first)
{
    struct ft_snap_seat *seats = c->seats.rows;
    uint64_t latest = 0;
    for (int i = 0; i < FT_TM_EVENTS; i++)
        if (!image->event_torn[i])
            latest = ft_max(latest, image->file.event[i].serial);
    for (uint64_t back = FT_TM_EVENTS; back-- > 0;) {
        const struct ft_tm_event *e = &image->file.event[(latest - 1 - back) % FT_TM_EVENTS];
        bool valid = latest > back && e->serial == latest - back && e->what == FT_MOVED_PEER;
        for (int k = first; valid && k < c->seats.n; k++)
            if (seats[k].engine == e->id)
                seats[k].news = news_of(e->to);
    }
}

static void add_seats(struct ft_tm_collection *c, const struct ft_image *image,
                      const struct ft_tm_comm *row, int engine)
{
    for (uint32_t i = 0; i < row->seats && i < FT_TM_SEATS; i++) {
        const struct ft_tm_seat *from = &image->file.seat[(row->seat + i) % FT_TM_SEATS];
        struct ft_snap_seat *seat = from->ctx == row->ctx ? ft_tm_list_add(c, &c->seats) : NULL;
        if (seat)
            *seat = (struct ft_snap_seat){.ctx = from->ctx,
                                          .rank = from->rank,
                                          .engine = from->engine,
                                          .host = from->host,
                                          .excluded = row->agree_ns && from->excluded,
                                          .teller = engine};
    }
}

static void add_comms(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    int seats = c->seats.n;
    for (int i = 0; i < FT_TM_COMMS; i++) {
        const struct ft_tm_comm *row = &image->file.comm[i];
        bool used = row->state == FT_TM_OPEN || row->state == FT_TM_CLOSED ||
                    row->state == FT_TM_JOINING;
        if (image->comm_torn[i] || !used)
            continue;
        add_member(c, image, i, engine);
        if (row->state == FT_TM_OPEN)
            add_seats(c, image, row, engine);
    }
    if (!c->no_memory)
        add_news(c, image, seats);
}

/* ---- a host ---------------------------------------------------------------------------------- */

bool ft_tm_should_be_readable(const char *path, int pid)
{
    char magic[8] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool there = fd >= 0 || errno != ENOENT;
    bool begun = fd < 0 || read(fd, magic, sizeof magic) != (ssize_t)sizeof magic || magic[0];
    if (fd >= 0)
        close(fd);
    return there && begun && (kill(pid, 0) == 0 || errno != ESRCH);
}

int ft_tm_each_file(const char *dir, ft_tm_visit *visit, void *arg)
{
    DIR *list = opendir(dir);
    if (!list)
        return ft_fail(FT_INVAL, "cannot list %.200s: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(list));) {
        struct ft_tm_name name;
        char path[PATH_MAX];
        if (!ft_tm_name_parse(entry->d_name, &name))
            continue;
        if (geteuid() != 0 && name.uid != geteuid())
            continue;
        int len = snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        visit(arg, len < (int)sizeof path ? path : NULL, entry->d_name);
    }
    closedir(list);
    return FT_OK;
}

static void add_image(struct ft_tm_collection *c, const struct ft_image *image,
                      const struct ft_tm_seen *seen)
{
    int engine = add_engine(c, &image->file.header, seen);
    if (engine < 0)
        return;
    add_comms(c, image, engine);
    ft_tm_add_links(c, image, engine);
}

/* For the second reading. */
static void note_file(struct ft_tm_collection *c, const char *name)
{
    struct ft_snap_engine *rows = c->engines.rows;
    if (c->engines.n > 0 && !c->no_memory)
        snprintf(rows[c->engines.n - 1].file, sizeof rows->file, "%.63s", name);
}

static void add_file(void *arg, const char *path, const char *name)
{
    struct ft_tm_collection *c = arg;
    struct ft_image *image;
    struct ft_tm_seen seen;
    struct ft_tm_name parts = {0};
    if (path && ft_image_load(path, &image) == FT_OK) {
        ft_tm_look(&image->file.header, &seen);
        add_image(c, image, &seen);
        if (seen.state == FT_PROCESS_RUNS || seen.state == FT_PROCESS_STOPPED)
            ft_tm_drop_threads(c, (int)image->file.header.pid);
        note_file(c, name);
        ft_image_free(image);
    } else {
        ft_tm_name_parse(name, &parts);
        c->unreadable += !path || ft_tm_should_be_readable(path, parts.pid);
    }
}

/* Its moment is that before the first file is read: what happens while the files are read, and the
 * reader waits for a core, is no wait of a rank. */
static void begin(struct ft_tm_collection *c)
{
    *c = (struct ft_tm_collection){.now_ns = ft_now_ns(ft_env_real()),
                                   .real_ns = ft_tm_real_ns(),
                                   .engines = {.row_bytes = sizeof(struct ft_snap_engine)},
                                   .members = {.row_bytes = sizeof(struct ft_snap_member)},
                                   .links = {.row_bytes = sizeof(struct ft_snap_link)},
                                   .seats = {.row_bytes = sizeof(struct ft_snap_seat)},
                                   .paths = {.row_bytes = sizeof(struct ft_snap_path)},
                                   .steps = {.row_bytes = sizeof(struct ft_snap_step)},
                                   .ops = {.row_bytes = sizeof(struct ft_snap_op)},
                                   .threads = {.row_bytes = sizeof(struct ft_snap_thread)},
                                   .latencies = {.row_bytes = sizeof(struct ft_snap_latency)},
                                   .clocks = {.row_bytes = sizeof(struct ft_snap_clock)},
                                   .events = {.row_bytes = sizeof(struct ft_snap_event)},
                                   .validations = {.row_bytes = sizeof(struct ft_snap_validation)}};
}

static void free_rows(struct ft_snapshot *s)
{
    struct ft_snap_list lists[FT_SNAP_LISTS];
    ft_snapshot_lists(s, lists);
    for (int i = 0; i < FT_SNAP_LISTS; i++)
        free(*lists[i].at);
}

/* Moves the rows into the snapshot. */
static void take_rows(struct ft_tm_collection *c, struct ft_snapshot *s)
{
    const struct ft_tm_list *const from[FT_SNAP_LISTS] = {
        &c->engines, &c->members, &c->links,     &c->seats,  &c->paths,  &c->steps,
        &c->ops,     &c->threads, &c->latencies, &c->clocks, &c->events, &c->validations};
    struct ft_snap_list lists[FT_SNAP_LISTS];
    ft_snapshot_lists(s, lists);
    for (int i = 0; i < FT_SNAP_LISTS; i++) {
        *lists[i].at = from[i]->rows;
        *lists[i].n = from[i]->n;
    }
}

/* The snapshot takes over what was collected. */
static int finish(struct ft_tm_collection *c, struct ft_snapshot **out)
{
    struct ft_snapshot taken = {
        .now_ns = c->now_ns, .real_ns = c->real_ns, .unreadable = c->unreadable};
    take_rows(c, &taken);
    struct ft_snapshot *s = c->no_memory ? NULL : malloc(sizeof *s);
    if (!s) {
        free_rows(&taken);
        return ft_fail(FT_NOMEM, "no memory for the telemetry of %d processes", c->engines.n);
    }
    *s = taken;
    if (ft_tm_align(s) != FT_OK) {
        ft_snapshot_free(s);
        return FT_NOMEM;
    }
    *out = s;
    return FT_OK;
}

/* ---- the second reading ---------------------------------------------------------------------- */

/* Sets what the links of one engine have received, from a later image of its file. `first` is its
 * first link, in the order of the rows. */
static void add_received(struct ft_tm_collection *c, const struct ft_image *image, int engine,
                         int first)
{
    struct ft_snap_link *links = c->links.rows;
    for (int i = 0; i < FT_TM_LINKS && first < c->links.n; i++) {
        const struct ft_tm_link *row = &image->file.link[i];
        struct ft_snap_link *link = &links[first];
        if (link->engine != engine)
            return;
        if (row->state != FT_TM_OPEN || row->peer != link->peer || row->sender != link->sender)
            continue;
        if (!link->sender)
            link->messages = ft_max(link->messages, row->messages);
        first++;
    }
}

/* Heartbeats go on while files are read one after the other. What was received is read again at the
 * end, so that it is not less than what had been sent before, unless it was lost. */
static void read_links_again(struct ft_tm_collection *c, const char *dir)
{
    const struct ft_snap_link *links = c->links.rows;
    for (int i = 0; i < c->links.n; i++) {
        const struct ft_snap_engine *engine = (struct ft_snap_engine *)c->engines.rows +
                                              links[i].engine;
        struct ft_image *image;
        if ((i > 0 && links[i - 1].engine == links[i].engine) || !engine->file[0])
            continue;
        char path[320];
        snprintf(path, sizeof path, "%.240s/%.64s", dir, engine->file);
        if (ft_image_load(path, &image) != FT_OK)
            continue;
        if (image->file.header.engine == engine->id)
            add_received(c, image, links[i].engine, i);
        ft_image_free(image);
    }
}

int ft_snapshot_collect(const char *dir, struct ft_snapshot **out)
{
    struct ft_tm_collection c;
    begin(&c);
    int status = ft_tm_each_file(dir, add_file, &c);
    if (status != FT_OK)
        return status;
    read_links_again(&c, dir);
    return finish(&c, out);
}

int ft_snapshot_of_file(const char *path, struct ft_snapshot **out)
{
    struct ft_tm_collection c;
    begin(&c);
    add_file(&c, path, strrchr(path, '/') + 1);
    return finish(&c, out);
}

int ft_snapshot_of_copy(const struct ft_telemetry_copy *copy, struct ft_snapshot **out)
{
    struct ft_tm_collection c;
    struct ft_image *image;
    struct ft_tm_seen seen = {.state = FT_PROCESS_UNKNOWN};
    int status = ft_image_parse(copy->bytes, copy->len_bytes, &image);
    if (status != FT_OK)
        return status;
    if (copy->state >= FT_PROCESS_UNKNOWN && copy->state <= FT_PROCESS_FROZEN)
        seen.state = (enum ft_process_state)copy->state;
    memcpy(seen.doing, copy->doing, sizeof seen.doing);
    ft_text_clean(seen.doing, sizeof seen.doing);
    begin(&c);
    c.now_ns = copy->now_ns;
    add_image(&c, image, &seen);
    ft_image_free(image);
    return finish(&c, out);
}

/* A file that was saved and cannot be read now has been changed since. */
static void add_saved(struct ft_tm_collection *c, const char *dir, const struct ft_tm_saved *saved)
{
    char path[PATH_MAX];
    struct ft_image *image;
    int len = snprintf(path, sizeof path, "%s/%s", dir, saved->name);
    if (len >= (int)sizeof path || ft_image_load(path, &image) != FT_OK) {
        c->unreadable++;
        return;
    }
    add_image(c, image, &saved->seen);
    ft_image_free(image);
}

int ft_snapshot_replay(const char *dir, struct ft_snapshot **out)
{
    struct ft_tm_moment moment;
    struct ft_tm_collection c;
    begin(&c);
    int status = ft_tm_moment_read(dir, &moment);
    for (int i = 0; status == FT_OK && i < moment.nprocesses; i++)
        add_saved(&c, dir, &moment.process[i]);
    free(moment.process);
    if (status != FT_OK)
        return status;
    c.unreadable += moment.unreadable;
    c.now_ns = moment.now_ns;
    c.real_ns = moment.real_ns;
    return finish(&c, out);
}

void ft_snapshot_free(struct ft_snapshot *s)
{
    if (!s)
        return;
    free_rows(s);
    free(s);
}
