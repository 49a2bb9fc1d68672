/*
 * How the first communicator of an engine begins: by unique ids, through the bootstrap. Runs in a
 * user's or helper thread and blocks within the init bound.
 */
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>

/* ---- by unique ids --------------------------------------------------------------------------- */

static uint64_t new_id(struct ft_env *env)
{
    uint64_t id = 0;
    while (id == 0)
        env->random(env, &id, sizeof id);
    return id;
}

int ft_init_engine(const struct ft_settings *settings, int rank,
                   const unsigned char key[FT_KEY_BYTES], struct ft_engine **out)
{
    struct ft_engine_config config = {.env = ft_env_real(),
                                      .rank = rank,
                                      .heartbeat_ms = settings->limits.heartbeat_ms,
                                      .suspect_ms = settings->limits.suspect_ms,
                                      .gpu = settings->gpu};
    const char *list = settings->transports ? settings->transports
                                            : ft_param_str(FT_PARAM_TRANSPORTS);
    int rc = ft_transport_list(list, config.transports, FT_ARRAY_LEN(config.transports));
    if (rc < 0)
        return rc;
    memcpy(config.key, key, sizeof config.key);
    config.id = new_id(config.env);
    return ft_rank_open(&config, out);
}

static int open_engine(const struct ft_init *init, struct ft_engine **out)
{
    unsigned char key[FT_KEY_BYTES];
    int rc = ft_unique_id_key(init->ids[0], key);
    return rc == FT_OK ? ft_init_engine(&init->settings, init->rank, key, out) : rc;
}

/* The first context of a job. Every rank knows it before anybody answers, so no message can come
 * too early. */
static uint64_t first_context(const struct ft_init *init)
{
    unsigned char key[FT_KEY_BYTES], derived[FT_SECRET_BYTES];
    uint64_t ctx;
    ft_unique_id_key(init->ids[0], key);
    ft_auth_derive(derived, key, "context", (uint64_t)init->nranks);
    memcpy(&ctx, derived, sizeof ctx);
    return ctx;
}

struct arrays {
    int *host;
    uint64_t *peer;
};

static int view_of(const struct ft_opening *opening, struct ft_view *view, struct arrays *arrays)
{
    const struct ft_endpoint *endpoint = opening->endpoint;
    size_t n = (size_t)opening->nranks;
    arrays->host = malloc(n * sizeof *arrays->host);
    arrays->peer = malloc(n * sizeof *arrays->peer);
    if (!arrays->host || !arrays->peer)
        return ft_fail(FT_NOMEM, "no memory for %zu ranks", n);
    *view = (struct ft_view){.epoch = opening->epoch,
                             .nranks = opening->nranks,
                             .rank = opening->rank,
                             .host = arrays->host,
                             .peer = arrays->peer};
    for (int r = 0; r < opening->nranks; r++) {
        int same = 0;
        while (same < r && endpoint[same].host != endpoint[r].host)
            same++;
        arrays->host[r] = same < r ? arrays->host[same] : view->nhosts++;
        arrays->peer[r] = endpoint[r].engine;
    }
    return FT_OK;
}

static int learn_all(struct ft_engine *engine, const struct ft_table *table, int rank)
{
    int rc = FT_OK;
    ft_engine_lock(engine);
    for (int r = 0; r < table->nranks && rc == FT_OK; r++) {
        const struct ft_endpoint *endpoint = &table->endpoint[r];
        if (r != rank)
            rc = ft_engine_learn(engine, endpoint->engine, endpoint->host, endpoint->address,
                                 endpoint->address_bytes, r);
    }
    ft_engine_unlock(engine);
    return rc;
}

void ft_endpoint_settings(struct ft_endpoint *endpoint, const struct ft_comm_limits *limits)
{
    size_t at = strlen(endpoint->config_text);
    uint64_t both[2] = {endpoint->config, ft_settings_flags(limits)};
    endpoint->config = ft_hash64(both, sizeof both, 0);
    snprintf(endpoint->config_text + at, sizeof endpoint->config_text - at,
             " verify=%d failure_policy=%s%s", limits->verify, limits->retry ? "retry" : "report",
             limits->concurrent ? " concurrent_p2p=1" : "");
}

/* The row of a rank that waits until all are there. */
struct joining {
    struct ft_telemetry *telemetry;
    int row;
};

static void tell_arrived(void *arg, int arrived)
{
    const struct joining *joining = arg;
    if (arrived > 0)
        ft_telemetry_comm_arrived(joining->telemetry, joining->row, (uint64_t)arrived);
}

static int join(const struct ft_init *init, struct ft_engine *engine, struct joining *joining,
                struct ft_table **table)
{
    struct ft_endpoint endpoint;
    int rc = ft_engine_endpoint(engine, &endpoint);
    if (rc == FT_OK && init->key &&
        !ft_endpoint_put(&endpoint, FT_ENDPOINT_KEY, init->key, sizeof *init->key))
        rc = ft_fail(FT_INTERNAL, "a key does not fit an endpoint");
    if (rc != FT_OK)
        return rc;
    ft_endpoint_settings(&endpoint, &init->settings.limits);
    struct ft_join join = {.ids = init->ids,
                           .nids = init->nids,
                           .nranks = init->nranks,
                           .rank = init->rank,
                           .endpoint = &endpoint,
                           .timeout_ns = (uint64_t)init->settings.limits.init_timeout_ms * 1000000u,
                           .cancel = init->cancel,
                           .waits = joining ? tell_arrived : NULL,
                           .waits_arg = joining,
                           .grow = init->joins};
    return ft_bootstrap_join(&join, table);
}

int ft_init_open(struct ft_engine *engine, const struct ft_opening *opening, struct ft_comm **out)
{
    struct ft_view view;
    struct arrays arrays = {0};
    int rc = view_of(opening, &view, &arrays);
    if (rc == FT_OK)
        rc = ft_comm_open(engine, &view, opening->ctx, opening->name, opening->limits, out);
    free(arrays.host);
    free(arrays.peer);
    return rc;
}

static int open_first(const struct ft_init *init, struct ft_engine *engine,
                      const struct ft_table *table, uint64_t ctx, struct ft_comm **out)
{
    struct ft_opening opening = {.endpoint = table->endpoint,
                                 .nranks = table->nranks,
                                 .rank = init->rank,
                                 .ctx = ctx,
                                 .name = init->name,
                                 .limits = &init->settings.limits};
    return ft_init_open(engine, &opening, out);
}

/* While it waits for the others, its telemetry says so. */
static int join_visibly(const struct ft_init *init, struct ft_engine *engine, uint64_t ctx,
                        struct ft_table **table)
{
    ft_engine_lock(engine);
    struct joining joining = {engine->telemetry,
                              ft_telemetry_comm_join(engine->telemetry, ctx, init->nranks,
                                                     init->rank, init->name)};
    ft_engine_unlock(engine);
    int rc = join(init, engine, &joining, table);
    ft_engine_lock(engine);
    ft_telemetry_comm_joined(engine->telemetry, joining.row);
    ft_engine_unlock(engine);
    return rc;
}

int ft_init_run(const struct ft_init *init, struct ft_comm **out)
{
    struct ft_engine *engine = NULL;
    struct ft_table *table = NULL;
    int rc = open_engine(init, &engine);
    if (rc != FT_OK)
        return rc;
    uint64_t ctx = first_context(init);
    if (!init->joins)
        rc = ft_engine_bind(engine, ctx);
    if (rc == FT_OK)
        rc = init->joins ? join(init, engine, NULL, &table)
                         : join_visibly(init, engine, ctx, &table);
    if (rc == FT_OK) {
        ft_engine_lock(engine);
        ft_path_finder_set_job(engine->paths, table->job);
        ft_engine_unlock(engine);
        rc = learn_all(engine, table, init->rank);
    }
    if (rc == FT_OK)
        rc = init->joins ? ft_grow_join(engine, init, table, out)
                         : open_first(init, engine, table, ctx, out);
    free(table);
    if (rc != FT_OK)
        ft_rank_close(engine);
    else
        FT_LOG(INFO, "init", init->rank, "communicator %016llx of %d ranks on %d hosts is ready",
               (unsigned long long)(*out)->ctx, (*out)->view.nranks, (*out)->view.nhosts);
    ft_engine_unref(engine);
    return rc;
}
