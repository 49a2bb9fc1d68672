/*
 * Opens and closes the engine of one rank, and does the slow part of its turns. drive.c decides who
 * turns it and when it sleeps.
 */
#include "core/engine/internal.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_NS 1000000u

/* ---- open and close -------------------------------------------------------------------------- */

static int watch_fd(struct ft_engine *engine, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0 || epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return FT_OK;
    return ft_fail(ft_status_of_errno(errno), "epoll_ctl: %s", strerror(errno));
}

static int open_sleep(struct ft_engine *engine)
{
    engine->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    engine->event_fd = ft_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (engine->epoll_fd < 0 || engine->event_fd < 0)
        return ft_fail(ft_status_of_errno(errno), "epoll or eventfd: %s", strerror(errno));
    return watch_fd(engine, engine->event_fd);
}

static int open_devices(struct ft_engine *engine, const struct ft_engine_config *config)
{
    int rc = ft_device_open(&engine->device);
    if (rc == FT_OK && !config->manual)
        rc = ft_device_open_gpu(config->gpu, &engine->gpu);
    return rc;
}

/* NULL: there is none, or it cannot be asked. The latter is logged: paths can be chosen alone. */
static struct ft_path_master *open_path_master(const struct ft_engine *engine)
{
    const char *at = ft_param_str(FT_PARAM_PATHS_MASTER),
               *file = ft_param_str(FT_PARAM_PATHS_KEY_FILE);
    unsigned char secret[FT_SECRET_BYTES];
    struct ft_path_master_config master = {.env = engine->env, .rank = engine->rank, .at = at};
    if (!at[0])
        return NULL;
    if (ft_secret_of_file("FTCCL_PATHS_KEY_FILE", file, secret) != FT_OK) {
        FT_LOG(WARN, "net", engine->rank, "the master of paths at %s is not asked: %s", at,
               ft_fail_text());
        return NULL;
    }
    ft_auth_derive(master.key, secret, "daemons", 0);
    struct ft_path_master *out = ft_path_master_open(&master);
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(&master, sizeof master);
    return out;
}

static int open_paths(struct ft_engine *engine)
{
    if (ft_param_int(FT_PARAM_PATHS) == 0) {
        if (ft_param_str(FT_PARAM_PATHS_MASTER)[0])
            FT_LOG(WARN, "net", engine->rank,
                   "FTCCL_PATHS_MASTER has no effect without FTCCL_PATHS");
        return FT_OK;
    }
    engine->paths = ft_path_finder_open(engine->env, engine->rank, open_path_master(engine));
    return engine->paths ? FT_OK : ft_fail(FT_NOMEM, "no memory for the ways to other hosts");
}

static int open_transports(struct ft_engine *engine, const struct ft_engine_config *config)
{
    struct ft_transport_config each = {.env = config->env,
                                       .self = config->id,
                                       .chunk_bytes = engine->tuning.chunk_bytes,
                                       .rank = config->rank,
                                       .first_bytes = ft_tuning_first_bytes(&engine->tuning),
                                       .pinned = engine->gpu ? engine->gpu->pinned : NULL,
                                       .suspect_ms = (uint64_t)config->suspect_ms,
                                       .ports = ft_path_finder_ports(engine->paths)};
    memcpy(each.key, config->key, sizeof each.key);
    for (int i = 0; config->transports[i] && i < FT_TRANSPORTS_MAX; i++) {
        struct ft_transport **at = &engine->transports[engine->ntransports];
        int rc = config->transports[i]->open(&each, at);
        if (rc == FT_NOTSUP) {
            FT_LOG(INFO, "net", config->rank, "transport %s is not usable here: %s",
                   config->transports[i]->name, ft_fail_text());
            continue;
        }
        if (rc != FT_OK)
            return rc;
        engine->ntransports++;
        if (!config->manual)
            rc = watch_fd(engine, (*at)->ops->fd(*at));
        if (rc != FT_OK)
            return rc;
    }
    return engine->ntransports > 0 ? FT_OK
                                   : ft_fail(FT_NOTSUP, "no transport is usable on this machine");
}

static int open_all(struct ft_engine *engine, const struct ft_engine_config *config)
{
    ft_cores_open(engine);
    int rc = ft_tuning_read(&engine->tuning, &engine->rules, ft_transport_is_network);
    if (rc == FT_OK && !config->manual)
        rc = open_sleep(engine);
    if (rc == FT_OK)
        rc = open_devices(engine, config);
    if (rc == FT_OK && !config->manual)
        rc = open_paths(engine);
    if (rc == FT_OK)
        rc = open_transports(engine, config);
    if (rc == FT_OK)
        rc = ft_control_open(engine);
    if (rc == FT_OK && !config->manual)
        ft_death_watch_open(engine);
    engine->trim_ns = (uint64_t)ft_param_int(FT_PARAM_TRIM_MS) * 1000000u;
    bool told = config->suspect_ms != 0;
    ft_heartbeat_open(engine, told ? config->heartbeat_ms : ft_param_int(FT_PARAM_HEARTBEAT_MS),
                      told ? config->suspect_ms : ft_param_int(FT_PARAM_SUSPECT_MS));
    if (rc == FT_OK && ft_param_int(FT_PARAM_TELEMETRY) && !config->manual)
        engine->telemetry = ft_telemetry_open(engine->env, engine->id, engine->host);
    return rc;
}

int ft_engine_open(struct ft_engine *engine, const struct ft_engine_config *config)
{
    ft_fork_guard();
    engine->env = config->env;
    engine->id = config->id;
    engine->rank = config->rank;
    engine->manual = config->manual;
    engine->host = ft_host_id();
    engine->epoll_fd = engine->event_fd = -1;
    engine->news_end = &engine->news;
    atomic_store(&engine->refs, 1);
    pthread_mutex_init(&engine->drive, NULL);
    pthread_mutex_init(&engine->inbox_lock, NULL);
    int rc = open_all(engine, config);
    if (rc != FT_OK)
        return rc;
    ft_memory_join(engine);
    ft_engine_enlist(engine);
    ft_overlay_open(engine);
    if (engine->telemetry)
        ft_ras_join(&engine->ras);
    return config->manual ? FT_OK : ft_engine_start_thread(engine);
}

void ft_engine_close(struct ft_engine *engine)
{
    ft_memory_leave(engine);
    ft_engine_lock(engine);
    ft_control_close(engine);
    ft_death_watch_close(engine);
    ft_peer_free_all(engine);
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->close(engine->transports[i]);
    engine->ntransports = 0;
    ft_path_finder_close(engine->paths);
    engine->paths = NULL;
    if (engine->device)
        ft_device_close(engine->device);
    if (engine->gpu)
        ft_device_close(engine->gpu);
    engine->device = engine->gpu = NULL;
    ft_telemetry_close(engine->telemetry);
    engine->telemetry = NULL;
    ft_engine_unlock(engine);
    ft_fd_close(&engine->epoll_fd);
    pthread_mutex_lock(&engine->inbox_lock); /* other threads may be writing to it */
    ft_fd_close(&engine->event_fd);
    pthread_mutex_unlock(&engine->inbox_lock);
}

/* ---- what it tells of itself ------------------------------------------------------------------
 */

int ft_engine_endpoint(struct ft_engine *engine, struct ft_endpoint *endpoint)
{
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->engine = engine->id;
    endpoint->host = engine->host;
    struct ft_tuning same = engine->tuning;
    same.costs.cores_per_host = 0; /* hosts may differ: a communicator uses its smallest number */
    endpoint->config = ft_tuning_digest(&same);
    snprintf(endpoint->config_text, sizeof endpoint->config_text,
             "chunk_bytes=%zu chunks=%d table=%08x algo=%.48s", same.chunk_bytes, same.chunks,
             (unsigned)ft_tuning_table_digest(&same), same.choice);
    if (!ft_cores_endpoint(engine, endpoint))
        return ft_fail(FT_INTERNAL, "processors do not fit an endpoint");
    for (int i = 0; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        unsigned char address[FT_ADDRESS_BYTES];
        int len = transport->ops->address(transport, address, sizeof address);
        if (len < 0)
            return len;
        if (!ft_endpoint_put(endpoint, transport->ops->name, address, (size_t)len))
            return ft_fail(FT_INTERNAL, "addresses do not fit an endpoint");
    }
    return ft_death_watch_endpoint(engine, endpoint) && ft_locality_endpoint(engine, endpoint)
               ? FT_OK
               : ft_fail(FT_INTERNAL, "a liveness page does not fit an endpoint");
}

/* ---- the slow part of a turn ----------------------------------------------------------------- */

static void trim_transports(struct ft_engine *engine)
{
    engine->trimmed_ns = engine->ticked_ns;
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->trim(engine->transports[i]);
}

bool ft_engine_tick_due(struct ft_engine *engine)
{
    uint64_t now = ft_now_ns(engine->env);
    if (now - engine->ticked_ns < TICK_NS)
        return false;
    engine->ticked_before_ns = engine->ticked_ns;
    engine->ticked_ns = now;
    return true;
}

void ft_engine_tick(struct ft_engine *engine)
{
    ft_engine_assert_held(engine);
    if (engine->hung_up)
        ft_peer_forget_past(engine);
    ft_death_watch_tick(engine);
    if (engine->waiting)
        ft_links_take_overdue(engine);
    if (engine->telemetry)
        ft_links_count(engine);
    if (ft_engine_trim_due(engine))
        trim_transports(engine);
}
