/*
 * Finding and loading a plugin, and one way to call all its versions. As NCCL does: the name N of
 * FTCCL_NET_PLUGIN is tried as libnccl-net-N.so and then as a file; without a name it is
 * libnccl-net.so; several names, separated by commas, are tried in turn; "none" is no plugin.
 */
#include "transport/net_plugin/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct net_plugin plugin; /* complete when `tried` is set and status is FT_OK */
static bool tried;
static int status;
static char why[NET_TEXT_BYTES];

/* ---- what plugins call ----------------------------------------------------------------------- */

static void take_log(int level, unsigned long subsystems, const char *file, int line,
                     const char *format, ...)
{
    char text[NET_TEXT_BYTES];
    const enum ft_log_level ours = level <= NET_ABI_LOG_WARN   ? FT_LOG_WARN
                                   : level <= NET_ABI_LOG_INFO ? FT_LOG_INFO
                                                               : FT_LOG_TRACE;
    va_list args;

    (void)subsystems;
    if (!ft_log_shows(ours, "net"))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    const char *base = file != NULL ? strrchr(file, '/') : NULL;
    ft_log_write(ours, "net", -1, "plugin %s:%d: %s",
                 base != NULL   ? base + 1
                 : file != NULL ? file
                                : "?",
                 line, text);
}

/* Plugins may report events to a profiler. There is none. */
static int take_event(void **event, int type, void *parent, int64_t id, void *data)
{
    (void)event, (void)type, (void)parent, (void)id, (void)data;
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

static const char *asked(void)
{
    return ft_param_str(FT_PARAM_NET_PLUGIN);
}

bool net_plugin_is_asked_for(void)
{
    return *asked() != '\0' && strcmp(asked(), "none") != 0;
}

/* Adds a sentence to the reasons why there is no plugin. */
static void because(const char *text)
{
    const size_t used = strlen(why);
    if (used + 3 < sizeof(why))
        snprintf(why + used, sizeof(why) - used, "%s%.*s", used > 0 ? "; " : "",
                 (int)(sizeof(why) - used - 3), text);
}

static void *open_file(struct net_plugin *p, const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    snprintf(p->path, sizeof(p->path), "%s", file);
    if (library == NULL)
        because(dlerror());
    return library;
}

static void *open_named(struct net_plugin *p, const char *name, size_t len)
{
    char file[256];
    void *library = NULL;

    snprintf(file, sizeof(file), "libnccl-net-%.*s.so", (int)len, name);
    if (memchr(name, '/', len) == NULL)
        library = open_file(p, file);
    snprintf(file, sizeof(file), "%.*s", (int)len, name);
    return library != NULL ? library : open_file(p, file);
}

static bool find_table(struct net_plugin *p, void *library)
{
    if ((p->v11 = dlsym(library, "ncclNetPlugin_v12")) != NULL)
        p->version = 12;
    else if ((p->v11 = dlsym(library, "ncclNetPlugin_v11")) != NULL)
        p->version = 11;
    else if ((p->v8 = dlsym(library, "ncclNetPlugin_v8")) != NULL)
        p->version = 8;
    const char *name = p->v11 != NULL ? p->v11->name : p->v8 != NULL ? p->v8->name : "";
    snprintf(p->name, sizeof(p->name), "%s", name != NULL ? name : "");
    return p->version > 0;
}

static bool failed(const struct net_plugin *p, const char *call, int result)
{
    char text[NET_TEXT_BYTES];

    if (result == 0)
        return false;
    snprintf(text, sizeof(text), "%s: %s of plugin %s failed with %d", p->path, call, p->name,
             result);
    because(text);
    return true;
}

/* Only a part of what all versions have is needed. */
static bool read_device(const struct net_plugin *p, int device, struct net_device *out)
{
    union {
        struct net_abi_properties_v8 v8;
        struct net_abi_properties_v11 v11;
        struct net_abi_properties_v12 v12;
    } properties;
    const char *name;

    memset(&properties, 0, sizeof(properties));
    if (failed(p, "getProperties",
               p->v8 != NULL ? p->v8->properties(device, &properties.v8)
                             : p->v11->properties(device, &properties)))
        return false;
    out->max_bytes = SIZE_MAX;
    if (p->version == 8) {
        name = properties.v8.name;
        out->speed_mbps = properties.v8.speed_mbps;
    } else { /* v12 begins like v11 */
        name = properties.v11.name;
        out->speed_mbps = properties.v11.speed_mbps;
        out->max_bytes = p->version == 11 ? properties.v11.max_p2p_bytes
                                          : properties.v12.max_p2p_bytes;
    }
    if (out->max_bytes == 0)
        out->max_bytes = SIZE_MAX;
    snprintf(out->name, sizeof(out->name), "%s", name != NULL ? name : "");
    return true;
}

static bool choose_device(struct net_plugin *p)
{
    struct net_device d;
    char text[NET_TEXT_BYTES];

    if (failed(p, "devices",
               p->v8 != NULL ? p->v8->devices(&p->ndevices) : p->v11->devices(&p->ndevices)))
        return false;
    p->device = -1;
    for (int i = 0; i < p->ndevices; i++)
        if (read_device(p, i, &d) && (p->device < 0 || d.speed_mbps > p->best.speed_mbps)) {
            p->best = d;
            p->device = i;
        }
    if (p->device >= 0)
        return true;
    snprintf(text, sizeof(text), "%s: plugin %s has no device", p->path, p->name);
    because(text);
    return false;
}

/* The first context stays for as long as the process: plugins may end everything with their last
 * one. With v8 there is none. */
static bool start(struct net_plugin *p)
{
    struct net_abi_config config = {NET_ABI_UNDEFINED};

    if (failed(p, "init",
               p->v8 != NULL ? p->v8->init(take_log)
                             : p->v11->init(&p->context, 0, &config, take_log, take_event)))
        return false;
    return choose_device(p);
}

static bool load(struct net_plugin *p, const char *name, size_t len)
{
    memset(p, 0, sizeof(*p));
    void *library = len > 0 ? open_named(p, name, len) : open_file(p, "libnccl-net.so");

    if (library == NULL)
        return false;
    if (!find_table(p, library)) {
        char text[NET_TEXT_BYTES];
        snprintf(text, sizeof(text),
                 "%s has none of ncclNetPlugin_v12, ncclNetPlugin_v11 and ncclNetPlugin_v8",
                 p->path);
        because(text);
        return false;
    }
    return start(p);
}

static int load_asked(void)
{
    const char *at = asked();

    if (strcmp(at, "none") == 0) {
        because("FTCCL_NET_PLUGIN is none");
        return FT_NOTSUP;
    }
    do {
        const size_t len = strcspn(at, ",");
        if (load(&plugin, at, len))
            return FT_OK;
        at += len + (at[len] == ',');
    } while (*at != '\0');
    return FT_NOTSUP;
}

void net_plugin_describe(const struct net_plugin *p, char *text)
{
    snprintf(text, NET_PLUGIN_TEXT_BYTES,
             "network plugin %s (%s, v%d): %d devices, used is %d, %s, %d Mbit/s", p->name, p->path,
             p->version, p->ndevices, p->device, p->best.name, p->best.speed_mbps);
}

static void log_found(void)
{
    char text[NET_PLUGIN_TEXT_BYTES];
    net_plugin_describe(&plugin, text);
    FT_LOG(INFO, "net", -1, "%s", text);
}

int net_plugin_get(const struct net_plugin **out)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        status = load_asked();
        tried = true;
        if (status == FT_OK)
            log_found();
        else if (net_plugin_is_asked_for())
            FT_LOG(WARN, "net", -1, "no network plugin: %s", why);
    }
    pthread_mutex_unlock(&lock);
    *out = &plugin;
    return status == FT_OK ? FT_OK : ft_fail(status, "no network plugin: %s", why);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int result_of(const struct net_plugin *p, const char *call, int result)
{
    return result == 0
               ? FT_OK
               : ft_fail(FT_LINK, "%s of network plugin %s failed with %d", call, p->name, result);
}

int net_plugin_open(const struct net_plugin *p, uint64_t engine, void **context)
{
    struct net_abi_config config = {NET_ABI_UNDEFINED};

    *context = NULL;
    if (p->v8 != NULL)
        return FT_OK;
    pthread_mutex_lock(&lock);
    int rc = result_of(p, "init", p->v11->init(context, engine, &config, take_log, take_event));
    pthread_mutex_unlock(&lock);
    return rc == FT_OK ? FT_OK : FT_NOTSUP;
}

void net_plugin_close(const struct net_plugin *p, void *context)
{
    if (p->v8 != NULL || p->v11->finalize == NULL)
        return;
    pthread_mutex_lock(&lock);
    (void)p->v11->finalize(context);
    pthread_mutex_unlock(&lock);
}

int net_plugin_listen(const struct net_plugin *p, void *context, void *handle, void **listener)
{
    return result_of(p, "listen",
                     p->v8 != NULL ? p->v8->listen(p->device, handle, listener)
                                   : p->v11->listen(context, p->device, handle, listener));
}

int net_plugin_connect(const struct net_plugin *p, void *context, void *handle, void **send_comm)
{
    void *offload = NULL; /* no: the host sends */
    int rc = result_of(p, "connect",
                       p->v8 != NULL
                           ? p->v8->connect(p->device, handle, send_comm, &offload)
                           : p->v11->connect(context, p->device, handle, send_comm, &offload));
    return rc == FT_OK && *send_comm == NULL ? FT_AGAIN : rc;
}

int net_plugin_accept(const struct net_plugin *p, void *listener, void **recv_comm)
{
    void *offload = NULL;
    int rc = result_of(p, "accept",
                       p->v8 != NULL ? p->v8->accept(listener, recv_comm, &offload)
                                     : p->v11->accept(listener, recv_comm, &offload));
    return rc == FT_OK && *recv_comm == NULL ? FT_AGAIN : rc;
}

int net_plugin_reg(const struct net_plugin *p, void *comm, void *data, size_t len, void **out)
{
    return result_of(p, "regMr",
                     p->v8 != NULL ? p->v8->reg(comm, data, len, NET_ABI_PTR_HOST, out)
                                   : p->v11->reg(comm, data, len, NET_ABI_PTR_HOST, out));
}

int net_plugin_isend(const struct net_plugin *p, void *comm, void *data, size_t len,
                     void *registered, void **request)
{
    *request = NULL;
    int rc = result_of(p, "isend",
                       p->v8 != NULL
                           ? p->v8->isend(comm, data, (int)len, 0, registered, request)
                           : p->v11->isend(comm, data, len, 0, registered, NULL, request));
    return rc == FT_OK && *request == NULL ? FT_AGAIN : rc;
}

int net_plugin_irecv(const struct net_plugin *p, void *comm, void *data, size_t len,
                     void *registered, void **request)
{
    int tag = 0, small = (int)len;
    void *profiled = NULL;

    *request = NULL;
    int rc = result_of(
        p, "irecv",
        p->v8 != NULL ? p->v8->irecv(comm, 1, &data, &small, &tag, &registered, request)
                      : p->v11->irecv(comm, 1, &data, &len, &tag, &registered, &profiled, request));
    return rc == FT_OK && *request == NULL ? FT_AGAIN : rc;
}

int net_plugin_test(const struct net_plugin *p, void *request, int *len_bytes)
{
    int done = 0;

    *len_bytes = -1;
    int rc = result_of(p, "test",
                       p->v8 != NULL ? p->v8->test(request, &done, len_bytes)
                                     : p->v11->test(request, &done, len_bytes));
    return rc == FT_OK && !done ? FT_AGAIN : rc;
}

void net_plugin_dereg(const struct net_plugin *p, void *comm, void *registered)
{
    (void)(p->v8 != NULL ? p->v8->dereg(comm, registered) : p->v11->dereg(comm, registered));
}

void net_plugin_close_send(const struct net_plugin *p, void *comm)
{
    (void)(p->v8 != NULL ? p->v8->close_send(comm) : p->v11->close_send(comm));
}

void net_plugin_close_recv(const struct net_plugin *p, void *comm)
{
    (void)(p->v8 != NULL ? p->v8->close_recv(comm) : p->v11->close_recv(comm));
}

void net_plugin_close_listen(const struct net_plugin *p, void *listener)
{
    (void)(p->v8 != NULL ? p->v8->close_listen(listener) : p->v11->close_listen(listener));
}
