/*
 * A network plugin, of whatever version: one per process, loaded at its first use and never
 * unloaded, because threads of its own may still run. Its code is a third party's and runs in this
 * process: what it does to memory, nobody can contain.
 *
 * The lock of plugin.c is held to find, load and initialise it. Everything else is called by the
 * engine that owns the comm, so two threads never use one comm at once.
 */
#ifndef FT_NET_PLUGIN_H
#define FT_NET_PLUGIN_H

#include "transport/net_plugin/abi.h"
#include "transport/transport.h"

#define NET_TEXT_BYTES 512
#define NET_NAME_BYTES 64         /* of a plugin's own name that are used */
#define NET_PLUGIN_TEXT_BYTES 512 /* of net_plugin_describe */

struct net_device {
    char name[NET_NAME_BYTES];
    int speed_mbps;
    size_t max_bytes; /* longest message */
};

struct net_plugin {
    int version; /* 8, 11 or 12 */
    char name[NET_NAME_BYTES];
    char path[256]; /* the file as dlopen was asked for it */
    int ndevices, device;
    struct net_device best; /* the device that is used: the fastest one */
    const struct net_abi_v8 *v8;
    const struct net_abi_v11 *v11; /* also of v12 */
    void *context;                 /* the first one, which stays */
};

/* Whether FTCCL_NET_PLUGIN names a plugin, so that `net` is among the transports without
 * FTCCL_TRANSPORTS. */
bool net_plugin_is_asked_for(void);
/* Loads and initialises the plugin. FT_NOTSUP names what is wrong with it; that is remembered. */
int net_plugin_get(const struct net_plugin **out);
/* A line for people: which plugin it is, and which device is used. */
void net_plugin_describe(const struct net_plugin *, char *text);
/* A context of an engine; NULL with v8. FT_NOTSUP. */
int net_plugin_open(const struct net_plugin *, uint64_t engine, void **context);
void net_plugin_close(const struct net_plugin *, void *context);

/* Return FT_OK, FT_AGAIN (not yet; call again) or FT_LINK with a sentence. */
int net_plugin_listen(const struct net_plugin *, void *context, void *handle, void **listener);
int net_plugin_connect(const struct net_plugin *, void *context, void *handle, void **send_comm);
int net_plugin_accept(const struct net_plugin *, void *listener, void **recv_comm);
int net_plugin_reg(const struct net_plugin *, void *comm, void *data, size_t len, void **out);
int net_plugin_isend(const struct net_plugin *, void *comm, void *data, size_t len,
                     void *registered, void **request);
int net_plugin_irecv(const struct net_plugin *, void *comm, void *data, size_t len,
                     void *registered, void **request);
/* *len_bytes: what the plugin says that was sent or received; -1: it says nothing. */
int net_plugin_test(const struct net_plugin *, void *request, int *len_bytes);
void net_plugin_dereg(const struct net_plugin *, void *comm, void *registered);
void net_plugin_close_send(const struct net_plugin *, void *comm);
void net_plugin_close_recv(const struct net_plugin *, void *comm);
void net_plugin_close_listen(const struct net_plugin *, void *listener);

#endif
