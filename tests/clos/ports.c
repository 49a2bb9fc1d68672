/*
 * Loaded before the C library into the ranks of a run whose source ports are drawn by a seed
 * (FT_PORT_SEED): what would get any free port from the kernel, a socket that connects or listens,
 * gets one of a sequence instead. A port that is taken is passed over.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

#define FIRST 20000
#define PORTS 40000
#define TRIES 100

typedef int call(int, const struct sockaddr *, socklen_t);

static uint16_t draw(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t state;
    pthread_mutex_lock(&lock);
    if (!state) {
        const char *seed = getenv("FT_PORT_SEED");
        state = strtoull(seed ? seed : "1", NULL, 10);
    }
    state += 0x9e3779b97f4a7c15U; /* splitmix64 */
    uint64_t x = state;
    pthread_mutex_unlock(&lock);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return (uint16_t)(FIRST + (x ^ (x >> 31)) % PORTS);
}

static call *real(const char *name)
{
    return (call *)dlsym(RTLD_NEXT, name);
}

static int is_anything_but_tcp(int fd, const struct sockaddr *address)
{
    int type = 0;
    socklen_t len = sizeof type;
    return !address || address->sa_family != AF_INET ||
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) || type != SOCK_STREAM;
}

int bind(int fd, const struct sockaddr *address, socklen_t len)
{
    call *next = real("bind");
    if (is_anything_but_tcp(fd, address) || ((const struct sockaddr_in *)address)->sin_port)
        return next(fd, address, len);
    struct sockaddr_in drawn = *(const struct sockaddr_in *)address;
    for (int i = 0; i < TRIES; i++) {
        drawn.sin_port = htons(draw());
        int result = next(fd, (const struct sockaddr *)&drawn, sizeof drawn);
        if (!result || errno != EADDRINUSE)
            return result;
    }
    return next(fd, address, len);
}

int connect(int fd, const struct sockaddr *address, socklen_t len)
{
    struct sockaddr_in mine = {0};
    socklen_t mine_len = sizeof mine;
    if (!is_anything_but_tcp(fd, address) &&
        !getsockname(fd, (struct sockaddr *)&mine, &mine_len) && !mine.sin_port) {
        mine.sin_family = AF_INET;
        if (bind(fd, (const struct sockaddr *)&mine, sizeof mine))
            return -1;
    }
    return real("connect")(fd, address, len);
}
