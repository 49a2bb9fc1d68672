/*
 * How communicators begin: by unique ids (an engine of its own, found through the bootstrap) or by split (the parent's
 * engine and links). Both run in a user's or helper thread and block within the init bound.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

/* ---- by unique ids --------------------------------------------------------------------------------------------------- */

static uint64_t new_id(struct ft_env *env)
{
    uint64_t id = 0;
    while (id == 0) env->random(env, &id, sizeof id);
    return id;
}

static int open_engine(const struct ft_init *init, struct ft_engine **out)
{
    struct ft_engine_config config = {.env = ft_env_real(), .rank = init->rank};
    const char *list = init->transports ? init->transports : ft_param_str(FT_PARAM_TRANSPORTS);
    int rc = ft_transport_list(list, config.transports, FT_TRANSPORTS_MAX);
    if (rc < 0) return rc;
    rc = ft_unique_id_key(init->ids[0], config.key);
    if (rc != FT_OK) return rc;
    config.id = new_id(config.env);
    return ft_engine_open(&config, out);
}

/* The first context of a job: known before anybody answers, so that no message can come too early. */
static uint64_t first_context(const struct ft_init *init)
{
    unsigned char key[FT_KEY_BYTES], derived[FT_SECRET_BYTES];
    uint64_t ctx;
    ft_unique_id_key(init->ids[0], key);
    ft_auth_derive(derived, key, "context", (uint64_t)init->nranks);
    memcpy(&ctx, derived, sizeof ctx);
    return ctx;
}

static uint32_t cores_of(const struct ft_card *card)
{
    size_t len;
    uint32_t cores = 1;
    const unsigned char *part = ft_card_part(card->address, card->address_bytes, "cores", &len);
    if (part && len == sizeof cores) memcpy(&cores, part, sizeof cores);
    return cores > 0 ? cores : 1;
}

struct arrays { int *host; uint64_t *peer; };

static int view_of(const struct ft_table *table, int rank, struct ft_view *view, struct arrays *arrays)
{
    size_t n = (size_t)table->nranks;
    arrays->host = malloc(n * sizeof *arrays->host);
    arrays->peer = malloc(n * sizeof *arrays->peer);
    if (!arrays->host || !arrays->peer) return ft_fail(FT_NOMEM, "no memory for %zu ranks", n);
    *view = (struct ft_view){.nranks = table->nranks, .rank = rank, .host = arrays->host, .peer = arrays->peer};
    for (int r = 0; r < table->nranks; r++) {
        int same = 0;
        while (same < r && table->card[same].host != table->card[r].host) same++;
        arrays->host[r] = same < r ? arrays->host[same] : view->nhosts++;
        arrays->peer[r] = table->card[r].engine;
    }
    return FT_OK;
}

static int learn_all(struct ft_engine *engine, const struct ft_table *table, int rank)
{
    int rc = FT_OK, local = 0;
    uint32_t cores = UINT32_MAX;
    ft_engine_lock(engine);
    for (int r = 0; r < table->nranks && rc == FT_OK; r++) {
        const struct ft_card *card = &table->card[r];
        local += card->host == engine->host;
        if (cores_of(card) < cores) cores = cores_of(card);
        if (r != rank) rc = ft_engine_learn(engine, card->engine, card->host, card->address, card->address_bytes, r);
    }
    engine->local_ranks = local;
    engine->tuning.costs.cores_per_host = (int)cores;
    ft_engine_unlock(engine);
    return rc;
}

/* The communicator's own settings that must be the same on all ranks. */
static void add_settings(struct ft_card *card, const struct ft_comm_limits *limits)
{
    size_t at = strlen(card->config_text);
    uint64_t both[2] = {card->config, limits->verify};
    card->config = ft_hash64(both, sizeof both, 0);
    snprintf(card->config_text + at, sizeof card->config_text - at, " verify=%d", limits->verify);
}

static int join(const struct ft_init *init, struct ft_engine *engine, struct ft_table **table)
{
    struct ft_card card;
    int rc = ft_engine_card(engine, &card);
    if (rc != FT_OK) return rc;
    add_settings(&card, &init->limits);
    struct ft_join join = {.ids = init->ids, .nids = init->nids, .nranks = init->nranks, .rank = init->rank, .card = &card,
                           .timeout_ns = (uint64_t)init->limits.init_timeout_ms * 1000000u, .cancel = init->cancel};
    return ft_bootstrap_join(&join, table);
}

int ft_init_run(const struct ft_init *init, struct ft_comm **out)
{
    struct ft_engine *engine = NULL;
    struct ft_table *table = NULL;
    struct ft_view view;
    struct arrays arrays = {0};
    uint64_t ctx = first_context(init);
    int rc = open_engine(init, &engine);
    if (rc != FT_OK) return rc;
    rc = ft_engine_bind(engine, ctx);
    if (rc == FT_OK) rc = join(init, engine, &table);
    if (rc == FT_OK) rc = learn_all(engine, table, init->rank);
    if (rc == FT_OK) rc = view_of(table, init->rank, &view, &arrays);
    if (rc == FT_OK) rc = ft_comm_open(engine, &view, ctx, init->name, &init->limits, out);
    free(arrays.host);
    free(arrays.peer);
    free(table);
    if (rc != FT_OK) ft_engine_close(engine);
    else FT_LOG(INFO, "init", init->rank, "communicator %016llx of %d ranks on %d hosts is ready", (unsigned long long)ctx, view.nranks, view.nhosts);
    ft_engine_unref(engine);
    return rc;
}

/* ---- by split ------------------------------------------------------------------------------------------------------------- */

struct choice { int32_t color, key, verify; };

int ft_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark)
{
    struct ft_stream *stream = ft_stream_new();
    struct ft_entry *entry = stream ? ft_entry_new(&stream, 1) : NULL;
    struct ft_work *work = entry ? ft_entry_work(entry, comm) : NULL;
    struct ft_op *op = work ? ft_op_new() : NULL;
    int rc = FT_NOMEM;
    if (op) {
        op->coll = (struct ft_coll){.kind = FT_ALLGATHER, .type = FT_INT32, .count = words, .root = mark};
        op->in = &all[(size_t)comm->view.rank * words];
        op->out = all;
        ft_work_add(work, op);
        ft_entry_submit(entry);
        rc = ft_stream_wait(stream);
    } else if (entry) ft_entry_free(entry);
    if (stream) ft_stream_release(stream);
    return rc;
}

static bool before(const struct choice *all, int a, int b) { return all[a].key != all[b].key ? all[a].key < all[b].key : a < b; }

/* Members of my color in order; returns their number and my place. */
static int members_of(const struct choice *all, int nranks, int rank, int *members, int *mine)
{
    int n = 0;
    for (int r = 0; r < nranks; r++) {
        if (all[r].color != all[rank].color) continue;
        int at = n++;
        for (; at > 0 && before(all, r, members[at - 1]); at--) members[at] = members[at - 1];
        members[at] = r;
    }
    for (int i = 0; i < n; i++)
        if (members[i] == rank) *mine = i;
    return n;
}

/* Settings of the child that must be the same on all its ranks. */
static int check_settings(const struct ft_comm *parent, const struct choice *all)
{
    int mine = parent->view.rank;
    for (int r = 0; r < parent->view.nranks; r++)
        if (all[r].color == all[mine].color && all[r].verify != all[mine].verify)
            return ft_fail(FT_MISMATCH, "CommSplit: rank %d has verify=%d, rank %d verify=%d", mine, all[mine].verify, r, all[r].verify);
    return FT_OK;
}

static int child_view(const struct ft_comm *parent, const struct choice *all, int *members, struct ft_view *view, struct arrays *arrays)
{
    const struct ft_view *old = &parent->view;
    view->nranks = members_of(all, old->nranks, old->rank, members, &view->rank);
    arrays->host = malloc((size_t)view->nranks * sizeof *arrays->host);
    arrays->peer = malloc((size_t)view->nranks * sizeof *arrays->peer);
    if (!arrays->host || !arrays->peer) return ft_fail(FT_NOMEM, "no memory for %d ranks", view->nranks);
    view->host = arrays->host;
    view->peer = arrays->peer;
    for (int i = 0; i < view->nranks; i++) {
        int same = 0;
        while (same < i && old->host[members[same]] != old->host[members[i]]) same++;
        arrays->host[i] = same < i ? arrays->host[same] : view->nhosts++;
        arrays->peer[i] = old->peer[members[i]];
    }
    return FT_OK;
}

int ft_split_run(struct ft_comm *parent, int color, int key, const char *name, const struct ft_comm_limits *limits,
                 struct ft_comm **out)
{
    struct ft_engine *engine = parent->engine;
    size_t n = (size_t)parent->view.nranks;
    struct choice *all = calloc(n, sizeof *all);
    int *members = calloc(n, sizeof *members);
    struct arrays arrays = {0};
    struct ft_view view = {.epoch = parent->view.epoch};
    ft_engine_lock(engine);
    uint32_t child = ++parent->children;
    ft_engine_unlock(engine);
    int32_t salt[2] = {(int32_t)child, color};
    uint64_t ctx = ft_hash64(salt, sizeof salt, parent->ctx);
    int rc = all && members ? ft_engine_bind(engine, ctx) : FT_NOMEM;
    bool bound = rc == FT_OK;
    *out = NULL;
    if (rc == FT_OK) {
        all[parent->view.rank] = (struct choice){color, key, limits->verify};
        rc = ft_exchange(parent, (int32_t *)all, sizeof *all / sizeof(int32_t), FT_SPLIT_MARK);
    }
    if (rc == FT_OK && color >= 0) rc = check_settings(parent, all);
    if (rc == FT_OK && color >= 0) rc = child_view(parent, all, members, &view, &arrays);
    if (rc == FT_OK && color >= 0) rc = ft_comm_open(engine, &view, ctx, name, limits, out);
    if (bound && !*out) ft_engine_unbind(engine, ctx);
    free(arrays.host);
    free(arrays.peer);
    free(members);
    free(all);
    return rc;
}
