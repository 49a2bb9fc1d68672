/*
 * ftccl-path: shows the links between routers that the master of paths (ftccld) knows, and takes
 * one out or back. Exit status: 0; 1 if the master cannot be asked or refuses; 2 for a usage error.
 */
#include "streams.h"

#include "membership/membership.h"
#include "path/master.h"

#include "base/auth.h"
#include "base/wire.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define MOST_NS (10 * SECOND_NS) /* for all that is asked */
#define ANSWER_MOST (4 + (size_t)FT_PATHS_LISTED * FT_PATHS_LINK_BYTES)

static const char help[] =
    "usage: ftccl-path [OPTION]... [show]\n"
    "       ftccl-path [OPTION]... out|in FROM TO\n"
    "Shows the links between routers that the master of paths knows, with the connections on\n"
    "each; takes a link out, so that no connection uses it, or back in. FROM and TO are addresses\n"
    "as shown; FROM may be any.\n"
    "  -m, --master HOST:PORT  the ftccld (default: FTCCL_PATHS_MASTER, or 127.0.0.1:28030)\n"
    "  -k, --key-file F        its key (default: FTCCL_PATHS_KEY_FILE)\n"
    "  -h, --help\n";

static const struct option options[] = {{"master", required_argument, NULL, 'm'},
                                        {"key-file", required_argument, NULL, 'k'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

struct request {
    const char *master, *key_file;
    enum ft_paths_message type;
    unsigned char link[32]; /* from, to */
};

static int usage(const char *sentence, const char *word)
{
    fprintf(stderr, "ftccl-path: %s%s\nftccl-path --help says more\n", sentence, word);
    return 2;
}

/* ---- the connection -------------------------------------------------------------------------- */

struct talk {
    int fd;
    uint64_t end_ns; /* when to give up */
};

static int wait_for(const struct talk *talk, short events)
{
    struct pollfd fd = {.fd = talk->fd, .events = events};
    const uint64_t now_ns = ft_now_ns(ft_env_real());
    const int left_ms = now_ns < talk->end_ns ? (int)((talk->end_ns - now_ns) / 1000000) + 1 : 0;
    const int n = poll(&fd, 1, left_ms);
    if (n == 0)
        return ft_fail(FT_TIMEOUT, "it did not answer in time");
    if (n < 0 && errno != EINTR)
        return ft_fail(FT_SYSTEM, "poll: %s", strerror(errno));
    return FT_OK;
}

static int connect_to(struct talk *talk, const struct ft_net_address *at)
{
    int status = ft_net_connect(at, NULL, &talk->fd);
    while (status == FT_OK && (status = ft_net_connected(talk->fd)) == FT_AGAIN)
        status = wait_for(talk, POLLOUT);
    if (status != FT_OK)
        ft_fd_close(&talk->fd);
    return status;
}

static int prove(const struct talk *talk, const unsigned char key[FT_KEY_BYTES])
{
    struct ft_auth auth;
    int status, waited = FT_OK;
    ft_auth_start(&auth, ft_env_real(), talk->fd, true, key, ft_process_id(), 0, FT_PURPOSE_SERVICE,
                  FT_DAEMON_VERSION, talk->end_ns);
    while ((status = ft_auth_turn(&auth)) == FT_AGAIN && waited == FT_OK)
        waited = wait_for(talk, ft_auth_events(&auth));
    sodium_memzero(&auth, sizeof auth);
    return waited != FT_OK ? waited : status;
}

static int say(const struct talk *talk, const struct request *r)
{
    unsigned char bytes[FT_DAEMON_HEADER_BYTES + sizeof r->link], *at = bytes;
    const size_t len = r->type == FT_PATHS_LIST ? 0 : sizeof r->link;
    put32(&at, (uint32_t)len);
    put16(&at, FT_PATHS_SERVICE);
    put16(&at, (uint16_t)r->type);
    memcpy(at, r->link, len);
    const ssize_t want = FT_DAEMON_HEADER_BYTES + (ssize_t)len; /* fits into an empty buffer */
    return send(talk->fd, bytes, (size_t)want, MSG_NOSIGNAL) == want
               ? FT_OK
               : ft_fail(FT_SYSTEM, "it cannot be told: %s", strerror(errno));
}

static int hear_bytes(const struct talk *talk, unsigned char *to, size_t len)
{
    while (len > 0) {
        const ssize_t n = recv(talk->fd, to, len, 0);
        int status = FT_OK;
        if (n == 0)
            return ft_fail(FT_SYSTEM, "it closed the connection");
        if (n < 0 && errno == EAGAIN)
            status = wait_for(talk, POLLIN);
        else if (n < 0 && errno != EINTR)
            status = ft_fail(FT_SYSTEM, "%s", strerror(errno));
        if (status != FT_OK)
            return status;
        to += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return FT_OK;
}

/* The answer of the type in `answer`, of ANSWER_MOST bytes; others are passed over. */
static int hear(const struct talk *talk, enum ft_paths_message type, unsigned char *answer,
                size_t *len)
{
    for (;;) {
        unsigned char header[FT_DAEMON_HEADER_BYTES];
        const unsigned char *at = header;
        int status = hear_bytes(talk, header, sizeof header);
        if (status != FT_OK)
            return status;
        *len = get32(&at);
        if (*len > ANSWER_MOST)
            return ft_fail(FT_PROTOCOL, "it announced a message that is too long");
        status = hear_bytes(talk, answer, *len);
        const bool ours = get16(&at) == FT_PATHS_SERVICE;
        if (status != FT_OK || (ours && get16(&at) == type))
            return status;
    }
}

static int find_key(const struct request *r, unsigned char key[FT_KEY_BYTES])
{
    unsigned char secret[FT_SECRET_BYTES];
    if (!r->key_file[0])
        return ft_fail(FT_USAGE, "its key is needed: --key-file, or FTCCL_PATHS_KEY_FILE");
    const int status = ft_secret_of_file("the key file", r->key_file, secret);
    if (status == FT_OK)
        ft_auth_derive(key, secret, "daemons", 0);
    sodium_memzero(secret, sizeof secret);
    return status;
}

static int ask(const struct request *r, unsigned char *answer, size_t *len)
{
    struct ft_net_address at[FT_NET_ADDRESSES];
    unsigned char key[FT_KEY_BYTES];
    struct talk talk = {.fd = -1, .end_ns = ft_now_ns(ft_env_real()) + MOST_NS};
    const int n = ft_net_resolve(r->master, at, FT_NET_ADDRESSES);
    int status = n > 0 ? find_key(r, key) : n;
    if (status == FT_OK) {
        for (int i = 0; i < n && talk.fd < 0; i++)
            status = connect_to(&talk, &at[i]);
        if (status == FT_OK)
            status = prove(&talk, key);
    }
    sodium_memzero(key, sizeof key);
    if (status == FT_OK)
        status = say(&talk, r);
    if (status == FT_OK)
        status = hear(&talk, r->type == FT_PATHS_LIST ? FT_PATHS_LINKS : FT_PATHS_DONE, answer,
                      len);
    ft_fd_close(&talk.fd);
    return status;
}

/* ---- what it says ---------------------------------------------------------------------------- */

static int compare_links(const void *a, const void *b)
{
    return memcmp(a, b, 32); /* from, then to */
}

static void print_link(const unsigned char *at)
{
    char from[FT_NET_TEXT_BYTES], to[FT_NET_TEXT_BYTES];
    ft_paths_ip_text(at, from);
    ft_paths_ip_text(at + 16, to);
    const unsigned char *next = at + 32;
    const char *state = ft_paths_state_text((int)get_bytes(&next, 1));
    printf("%-22s %-22s %-8s %11" PRIu32 " ", from, to, state, get32(&next));
    for (int i = 0; i < FT_PATHS_JOBS; i++) {
        const uint64_t job = get64(&next);
        const uint32_t connections = get32(&next);
        if (connections > 0)
            printf(" %016" PRIx64 " (%" PRIu32 ")", job, connections);
    }
    printf("\n");
}

static int print_links(unsigned char *answer, size_t len)
{
    const unsigned char *at = answer;
    if (len < 4 || (len - 4) % FT_PATHS_LINK_BYTES != 0)
        return ft_fail(FT_PROTOCOL, "its answer makes no sense");
    const uint32_t all = get32(&at);
    const size_t n = (len - 4) / FT_PATHS_LINK_BYTES;
    qsort(answer + 4, n, FT_PATHS_LINK_BYTES, compare_links);
    printf("%-22s %-22s %-8s %11s  jobs (connections)\n", "from", "to", "state", "connections");
    for (size_t i = 0; i < n; i++)
        print_link(answer + 4 + i * FT_PATHS_LINK_BYTES);
    if (all > n)
        printf("and %zu links that are not listed\n", all - n);
    return FT_OK;
}

static int print_done(const unsigned char *answer, size_t len)
{
    const unsigned char *at = answer;
    if (len < 4)
        return ft_fail(FT_PROTOCOL, "its answer makes no sense");
    const int status = (int)get32(&at);
    return status == FT_OK ? FT_OK : ft_fail(status, "%.*s", (int)(len - 4), (const char *)at);
}

static int run(const struct request *r)
{
    size_t len = 0;
    unsigned char *answer = malloc(ANSWER_MOST);
    int status = answer != NULL ? ask(r, answer, &len) : ft_fail(FT_NOMEM, "no memory");
    if (status == FT_OK)
        status = r->type == FT_PATHS_LIST ? print_links(answer, len) : print_done(answer, len);
    if (status != FT_OK)
        fprintf(stderr, "ftccl-path: the master of paths at %s: %s\n", r->master, ft_fail_text());
    free(answer);
    return status == FT_OK ? 0 : status == FT_USAGE ? 2 : 1;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int take_words(struct request *r, int n, char **word)
{
    if (n == 0 || (n == 1 && strcmp(word[0], "show") == 0))
        return 0;
    r->type = strcmp(word[0], "out") == 0 ? FT_PATHS_OUT : FT_PATHS_IN;
    if (r->type == FT_PATHS_IN && strcmp(word[0], "in") != 0)
        return usage("it does not know ", word[0]);
    if (n != 3)
        return usage(word[0], " wants two addresses, FROM and TO");
    for (int i = 0; i < 2; i++)
        if (!ft_paths_parse_ip(word[1 + i], r->link + 16 * i))
            return usage("this is no address: ", word[1 + i]);
    if (strcmp(word[2], "any") == 0)
        return usage("only FROM may be ", "any");
    return 0;
}

int main(int argc, char **argv)
{
    streams_open("ftccl-path");
    struct request r = {.master = ft_param_str(FT_PARAM_PATHS_MASTER),
                        .key_file = ft_param_str(FT_PARAM_PATHS_KEY_FILE),
                        .type = FT_PATHS_LIST};
    if (!r.master[0])
        r.master = "127.0.0.1:28030";
    for (int option; (option = getopt_long(argc, argv, "m:k:h", options, NULL)) != -1;) {
        if (option == 'm')
            r.master = optarg;
        else if (option == 'k')
            r.key_file = optarg;
        else if (option == 'h')
            return fputs(help, stdout) < 0;
        else
            return 2; /* getopt has said why */
    }
    const int status = take_words(&r, argc - optind, argv + optind);
    return status != 0 ? status : run(&r);
}
