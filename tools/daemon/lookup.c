/*
 * Looks up a name in a thread of its own: a resolver may take half a minute, or for ever. Thread
 * and loop share the lookup; whoever is the last to leave it frees it.
 */
#include "daemon.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct daemon_lookup {
    struct daemon *daemon;
    struct daemon_watch watch; /* of the descriptor on which the thread tells its end */
    daemon_found *found;
    void *arg;
    atomic_bool left; /* by one of the two */
    char name[300], why[200];
    struct ft_net_address at[FT_NET_ADDRESSES];
    int n;
};

static void leave(struct daemon_lookup *l)
{
    if (!atomic_exchange(&l->left, true))
        return;
    close(l->watch.fd);
    free(l);
}

static void *look_up(void *arg)
{
    struct daemon_lookup *l = arg;
    const uint64_t one = 1;
    l->n = ft_net_resolve(l->name, l->at, FT_NET_ADDRESSES);
    if (l->n <= 0)
        snprintf(l->why, sizeof l->why, "%.190s", ft_fail_text());
    if (write(l->watch.fd, &one, sizeof one) != sizeof one)
        l->n = 0; /* cannot be: the counter of the descriptor was zero */
    leave(l);
    return NULL;
}

static void on_ready(void *arg, uint32_t events)
{
    struct daemon_lookup *l = arg;
    eventfd_t count;
    (void)events;
    daemon_unwatch(l->daemon, &l->watch);
    eventfd_read(l->watch.fd, &count); /* what the thread found comes before its write */
    l->found(l->arg, l->at, l->n, l->why);
    leave(l);
}

static int start(struct daemon_lookup *l)
{
    pthread_t thread;
    int error = daemon_watch_for(l->daemon, &l->watch, EPOLLIN) == FT_OK ? 0 : ENOMEM;
    if (error == 0)
        error = pthread_create(&thread, NULL, look_up, l);
    if (error == 0)
        error = pthread_detach(thread);
    return error;
}

struct daemon_lookup *daemon_lookup_start(struct daemon *d, const char *name, daemon_found *found,
                                          void *arg)
{
    struct daemon_lookup *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct daemon_lookup){.daemon = d, .found = found, .arg = arg};
    snprintf(l->name, sizeof l->name, "%.299s", name);
    l->watch = (struct daemon_watch){
        .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_ready, .arg = l};
    int error = l->watch.fd >= 0 ? start(l) : errno;
    if (error == 0)
        return l;
    ft_fail(FT_SYSTEM, "no thread to look up %.200s: %s", name, strerror(error));
    if (l->watch.fd >= 0) {
        daemon_unwatch(d, &l->watch);
        close(l->watch.fd);
    }
    free(l);
    return NULL;
}

void daemon_lookup_end(struct daemon_lookup *l)
{
    if (l)
        leave(l);
}
