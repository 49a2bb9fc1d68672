/*
 * Loaded before the C library: a name "hangs.invalid" is never found, "late.invalid" is the
 * loopback after a second.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *found = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &found, sizeof real);
    while (node && strcmp(node, "hangs.invalid") == 0)
        pause();
    if (!node || strcmp(node, "late.invalid") != 0)
        return real(node, service, hints, out);
    sleep(1);
    return real("127.0.0.1", service, hints, out);
}
