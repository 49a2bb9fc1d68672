/*
 * A network plugin for tests: one TCP connection for each comm, in the form of NCCL's interface v8,
 * v11 or v12 (PLUGIN_VERSION; 0: none of them). FT_TEST_PLUGIN makes it misbehave:
 *   fail_init, no_devices, fail_listen   as they say
 *   again=N     every N-th isend and irecv returns no request
 *   size_after=N  from the N-th receive on, test reports a byte less than has come
 *   break_after=N the N-th receive fails
 *   never       connect and accept never complete
 */
#include "transport/net_plugin/abi.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3 };

struct comm;

struct request {
    struct comm *comm;
    bool used, over;
    char *data;
    size_t len, done; /* done: with the four bytes before the data */
    uint32_t wire;    /* those bytes: the length */
};

struct comm {
    int fd;
    bool sends, broken;
    struct request request[NET_ABI_REQUESTS];
    unsigned head, count; /* those that are under way, in order */
    unsigned long calls, received;
};

/* In the handle, which stays between the calls of connect. */
struct place {
    struct sockaddr_in at;
    struct comm *comm;
};
_Static_assert(sizeof(struct place) <= NET_ABI_HANDLE_BYTES, "a handle has room for it");

static const char *option(const char *name)
{
    const char *all = getenv("FT_TEST_PLUGIN"), *at = all != NULL ? strstr(all, name) : NULL;
    return at != NULL ? at + strlen(name) : NULL;
}

static unsigned long number(const char *name)
{
    const char *at = option(name);
    return at != NULL ? strtoul(at, NULL, 10) : 0;
}

static int devices(int *count)
{
    *count = option("no_devices") != NULL ? 0 : 2;
    return OK;
}

/* The first address of an interface that is up, or loopback. */
static struct sockaddr_in my_address(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return at;
    for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP &&
            !(i->ifa_flags & IFF_LOOPBACK)) {
            memcpy(&at, i->ifa_addr, sizeof(at));
            break;
        }
    at.sin_port = 0;
    freeifaddrs(all);
    return at;
}

static int listen_at(void *handle, void **listener)
{
    struct place place = {.at = my_address()};
    socklen_t len = sizeof(place.at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || option("fail_listen") != NULL || bind(fd, (void *)&place.at, len) != 0 ||
        listen(fd, 1) != 0 || getsockname(fd, (void *)&place.at, &len) != 0) {
        if (fd >= 0)
            close(fd);
        return SYSTEM_ERROR;
    }
    memcpy(handle, &place, sizeof(place));
    *listener = (void *)(intptr_t)(fd + 1);
    return OK;
}

static struct comm *comm_open(int fd, bool sends)
{
    const int on = 1;
    struct comm *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        close(fd);
        return NULL;
    }
    c->fd = fd;
    c->sends = sends;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return c;
}

static int close_comm(void *comm)
{
    struct comm *c = comm;
    close(c->fd);
    free(c);
    return OK;
}

static int connect_to(void *handle, void **send_comm)
{
    struct place place;
    memcpy(&place, handle, sizeof(place));
    *send_comm = NULL;
    if (place.comm == NULL) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || (place.comm = comm_open(fd, true)) == NULL)
            return SYSTEM_ERROR;
        memcpy(handle, &place, sizeof(place));
    }
    if (option("never") != NULL)
        return OK;
    if (connect(place.comm->fd, (void *)&place.at, sizeof(place.at)) == 0 || errno == EISCONN)
        *send_comm = place.comm;
    else if (errno != EINPROGRESS && errno != EALREADY && errno != EINTR)
        return SYSTEM_ERROR;
    return OK;
}

static int accept_one(void *listener, void **recv_comm, void **offload)
{
    (void)offload;
    *recv_comm = NULL;
    if (option("never") != NULL)
        return OK;
    int fd = accept4((int)(intptr_t)listener - 1, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR ? OK : SYSTEM_ERROR;
    *recv_comm = comm_open(fd, false);
    return *recv_comm != NULL ? OK : SYSTEM_ERROR;
}

static int close_listener(void *listener)
{
    close((int)(intptr_t)listener - 1);
    return OK;
}

static int reg(void *comm, void *data, size_t len_bytes, int type, void **registered)
{
    (void)comm, (void)len_bytes;
    *registered = data;
    return type == NET_ABI_PTR_HOST ? OK : INTERNAL_ERROR;
}

static int dereg(void *comm, void *registered)
{
    (void)comm, (void)registered;
    return OK;
}

static struct request *add(struct comm *c, void *data, size_t len)
{
    const unsigned long again = number("again=");
    struct request *r = &c->request[(c->head + c->count) % NET_ABI_REQUESTS];

    if (c->count == NET_ABI_REQUESTS || r->used || (again > 0 && ++c->calls % again == 0))
        return NULL;
    *r = (struct request){.comm = c, .used = true, .data = data, .len = len, .wire = (uint32_t)len};
    c->count++;
    return r;
}

/* The rest of a request: of its length, and of its data. */
static ssize_t move(struct request *r, size_t *wanted)
{
    const bool sends = r->comm->sends;
    struct iovec iov[2];
    struct msghdr m = {.msg_iov = iov};
    const size_t head = sizeof(r->wire), in_data = r->done > head ? r->done - head : 0;

    if (r->done < head)
        iov[m.msg_iovlen++] = (struct iovec){(char *)&r->wire + r->done, head - r->done};
    if ((sends || r->done >= head) && in_data < r->wire)
        iov[m.msg_iovlen++] = (struct iovec){r->data + in_data, r->wire - in_data};
    *wanted = 0;
    for (size_t i = 0; i < m.msg_iovlen; i++)
        *wanted += iov[i].iov_len;
    return sends ? sendmsg(r->comm->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
                 : recvmsg(r->comm->fd, &m, MSG_DONTWAIT);
}

/* Moves what the socket takes or has, for the requests in their order. */
static int progress(struct comm *c)
{
    while (c->count > 0 && !c->broken) {
        struct request *r = &c->request[c->head];
        size_t wanted;
        ssize_t n = move(r, &wanted);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return OK;
        c->broken = n <= 0;
        if (c->broken)
            break;
        r->done += (size_t)n;
        if (r->done == sizeof(r->wire) && !c->sends && r->wire > r->len)
            return INTERNAL_ERROR; /* longer than the buffer */
        if (r->done < sizeof(r->wire) || r->done < sizeof(r->wire) + r->wire)
            continue;
        r->over = true;
        c->head = (c->head + 1) % NET_ABI_REQUESTS;
        c->count--;
    }
    return OK;
}

static int send_one(void *comm, void *data, size_t len, void **request)
{
    *request = add(comm, data, len);
    return progress(comm);
}

static int receive_one(void *comm, void *data, size_t len, void **request)
{
    struct request *r = add(comm, data, len);
    if (r != NULL)
        r->wire = 0;
    *request = r;
    return OK;
}

static int test(void *request, int *done, int *len_bytes)
{
    struct request *r = request;
    struct comm *c = r->comm;
    const unsigned long wrong = number("size_after="), fails = number("break_after=");
    int rc = r->over ? OK : progress(c);

    *done = r->over;
    if (!r->over)
        return rc != OK || c->broken ? SYSTEM_ERROR : OK;
    r->used = false;
    *len_bytes = (int)r->wire;
    if (c->sends)
        return OK;
    c->received++;
    if (fails > 0 && c->received >= fails)
        return SYSTEM_ERROR;
    if (wrong > 0 && c->received >= wrong)
        --*len_bytes;
    return OK;
}

/* ---- the tables of the versions -------------------------------------------------------------- */

static char names[2][16] = {"test_slow", "test_fast"};

static int init_failure(void)
{
    return option("fail_init") != NULL ? SYSTEM_ERROR : OK;
}

#if PLUGIN_VERSION == 8
static int init(net_abi_logger *log)
{
    log(NET_ABI_LOG_INFO, ~0ul, __FILE__, __LINE__, "the plugin of the tests, v%d", 8);
    return init_failure();
}

static int properties(int device, struct net_abi_properties_v8 *out)
{
    *out = (struct net_abi_properties_v8){.name = names[device],
                                          .ptr_support = NET_ABI_PTR_HOST,
                                          .speed_mbps = 1000 * (device + 1),
                                          .max_comms = 65536,
                                          .max_recvs = 1};
    return OK;
}

static int listen_v8(int device, void *handle, void **listener)
{
    return device == 1 ? listen_at(handle, listener) : INTERNAL_ERROR;
}

static int connect_v8(int device, void *handle, void **send_comm, void **offload)
{
    return device == 1 && *offload == NULL ? connect_to(handle, send_comm) : INTERNAL_ERROR;
}

static int isend(void *comm, void *data, int len, int tag, void *registered, void **request)
{
    return tag == 0 && registered != NULL ? send_one(comm, data, (size_t)len, request)
                                          : INTERNAL_ERROR;
}

static int irecv(void *comm, int n, void **data, int *lens, int *tags, void **registered,
                 void **request)
{
    return n == 1 && tags[0] == 0 && registered[0] != NULL
               ? receive_one(comm, data[0], (size_t)lens[0], request)
               : INTERNAL_ERROR;
}

extern __attribute__((visibility("default"))) const struct net_abi_v8 ncclNetPlugin_v8;
const struct net_abi_v8 ncclNetPlugin_v8 = {
    .name = "FTCCL test",
    .init = init,
    .properties = properties,
    .listen = listen_v8,
    .connect = connect_v8,
#elif PLUGIN_VERSION == 11 || PLUGIN_VERSION == 12
/* As in NCCL, the contexts of a process are counted. */
static int init(void **context, uint64_t comm, struct net_abi_config *config, net_abi_logger *log,
                net_abi_profiler *profile)
{
    (void)comm;
    if (config->traffic_class != NET_ABI_UNDEFINED || profile(NULL, 0, NULL, 0, NULL) != 0)
        return INTERNAL_ERROR;
    log(NET_ABI_LOG_INFO, ~0ul, __FILE__, __LINE__, "the plugin of the tests, v%d", PLUGIN_VERSION);
    *context = malloc(1);
    return *context != NULL ? init_failure() : SYSTEM_ERROR;
}

static int finalize(void *context)
{
    free(context);
    return OK;
}

static int properties(int device, void *properties)
{
#if PLUGIN_VERSION == 11
    struct net_abi_properties_v11 *out = properties;
#else
    struct net_abi_properties_v12 *out = properties;
    out->rail = out->plane = NET_ABI_UNDEFINED;
#endif
    out->name = names[device];
    out->ptr_support = NET_ABI_PTR_HOST;
    out->speed_mbps = 1000 * (device + 1);
    out->max_comms = 65536;
    out->max_recvs = 1;
    out->max_p2p_bytes = out->max_coll_bytes = 1 << 30;
    return OK;
}

static int listen_v11(void *context, int device, void *handle, void **listener)
{
    return context != NULL && device == 1 ? listen_at(handle, listener) : INTERNAL_ERROR;
}

static int connect_v11(void *context, int device, void *handle, void **send_comm, void **offload)
{
    return context != NULL && device == 1 && *offload == NULL ? connect_to(handle, send_comm)
                                                              : INTERNAL_ERROR;
}

static int isend(void *comm, void *data, size_t len, int tag, void *registered, void *profiled,
                 void **request)
{
    return tag == 0 && registered != NULL && profiled == NULL ? send_one(comm, data, len, request)
                                                              : INTERNAL_ERROR;
}

static int irecv(void *comm, int n, void **data, size_t *lens, int *tags, void **registered,
                 void **profiled, void **request)
{
    return n == 1 && tags[0] == 0 && registered[0] != NULL && profiled[0] == NULL
               ? receive_one(comm, data[0], lens[0], request)
               : INTERNAL_ERROR;
}

#if PLUGIN_VERSION == 11
extern __attribute__((visibility("default"))) const struct net_abi_v11 ncclNetPlugin_v11;
const struct net_abi_v11 ncclNetPlugin_v11 = {
#else
extern __attribute__((visibility("default"))) const struct net_abi_v11 ncclNetPlugin_v12;
const struct net_abi_v11 ncclNetPlugin_v12 = {
#endif
    .name = "FTCCL test",
    .init = init,
    .properties = properties,
    .listen = listen_v11,
    .connect = connect_v11,
    .finalize = finalize,
#endif
#if PLUGIN_VERSION > 0
    .devices = devices,
    .accept = accept_one,
    .reg = reg,
    .dereg = dereg,
    .isend = isend,
    .irecv = irecv,
    .test = test,
    .close_send = close_comm,
    .close_recv = close_comm,
    .close_listen = close_listener,
};
#endif
