/*
 * The port of the responder. Of all processes of a host and user one listens: it has bound the port
 * alone. The others try to bind it now and then, so one of them has it soon after the listener has
 * ended. A process that is stopped keeps its port, and the kernel accepts connections for it. So
 * who cannot bind connects and asks, and who gets no answer listens, too: the listener allows this
 * to its own user. The kernel would then choose one of the two sockets by chance. A filter on the
 * port makes it choose the new one. Who listens and hears nothing asks as well: the port may have
 * been taken from it, and the process that has it may not answer.
 */
#include "ras/internal.h"

#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_NS 500000000u /* the listener must answer within this time */
#define PERIOD_NS 500000000u   /* time between two attempts on a host */
#define PERIOD_MAX_NS 30000000000u
#define QUIET_NS 2000000000u /* for so long nobody has asked */
/* For so long the port of a process that ends may not be free yet, and how often it is tried. */
#define HURRY_NS 2000000000u
#define TRY_NS 25000000u
#define TAKEN_NS 5000000000u /* another program has it */
#define MOST_LISTENERS 64

static const char question[] = "CLIENT PROTOCOL 2\n", answer[] = "SERVER PROTOCOL";

/* Makes the kernel give connections to the socket that joined the port as number `index`. */
static bool attach_filter(int fd, uint32_t index)
{
    struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, index);
    struct sock_fprog program = {.len = 1, .filter = &code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
}

/* Opens a connection to the port. Returns true if it came to this socket; then it is closed. */
static bool comes_here(const struct ft_ras_port *port, int *there)
{
    int here = -1;
    bool came = ft_net_connect(&port->address, NULL, there) == FT_OK &&
                ft_net_accept(port->listener, &here) == FT_OK;
    ft_fd_close(&here);
    if (came)
        ft_fd_close(there);
    return came;
}

/* The place of this socket among those that listen is unknown, so places are tried. */
static void take_connections(struct ft_ras_port *port)
{
    for (uint32_t place = 0; place < MOST_LISTENERS; place++) {
        int there = -1;
        if (!attach_filter(port->listener, place) || comes_here(port, &there))
            return;
        ft_fd_close(&there);
    }
}

/* Ranks of a host take turns by chance, so that together they make about one attempt a period. */
static void plan(struct ft_ras_port *port, uint64_t now_ns, int local_ranks)
{
    uint64_t period_ns = ft_min(PERIOD_NS * (uint64_t)ft_max(1, (size_t)local_ranks),
                                PERIOD_MAX_NS),
             chance;
    struct ft_env *env = ft_env_real();
    env->random(env, &chance, sizeof chance);
    port->due_ns = now_ns + period_ns / 2 + chance % period_ns;
}

static void tell(struct ft_ras_port *port, const char *text)
{
    char where[FT_NET_TEXT_BYTES];
    if (!port->told)
        FT_LOG(INFO, "ras", -1, "%s %s", ft_net_text(&port->address, where), text);
    port->told = true;
}

static bool listen_alone(struct ft_ras_port *port)
{
    return ft_net_listen_alone(&port->address, &port->listener) == FT_OK;
}

/* ---- asking the listener --------------------------------------------------------------------- */

/* FT_AGAIN: there is no answer yet. FT_OK: there is one. Other: the connection failed. */
static int hear(struct ft_ras_port *port)
{
    char reply[sizeof answer - 1];
    int rc = port->asked ? FT_OK : ft_net_connected(port->probe);
    if (rc != FT_OK)
        return rc;
    if (!port->asked) {
        port->asked = true;
        if (send(port->probe, question, sizeof question - 1, MSG_NOSIGNAL) < 0)
            return FT_LINK;
    }
    ssize_t n = recv(port->probe, reply, sizeof reply, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? FT_AGAIN : FT_LINK;
    if (n > 0 && memcmp(reply, answer, (size_t)n) != 0)
        tell(port, "is used by another program: nobody answers there about this host's ranks");
    return FT_OK;
}

/* The listener does not answer: it is stopped, or it is no responder. */
static void take_over(struct ft_ras_port *port, uint64_t now_ns)
{
    if (port->listener < 0 && ft_net_listen_too(&port->address, &port->listener) != FT_OK) {
        tell(port, "is used by another program or user, which does not answer");
        port->due_ns = now_ns + TAKEN_NS;
        return;
    }
    take_connections(port);
    port->heard_ns = now_ns;
    FT_LOG(INFO, "ras", -1, "this process answers clients now: the one before did not");
}

static void look_at_probe(struct ft_ras_port *port, uint64_t now_ns)
{
    int rc = hear(port);
    bool silent = rc == FT_AGAIN && now_ns >= port->probed_ns + PATIENCE_NS;
    if (rc == FT_AGAIN && !silent)
        return;
    ft_fd_close(&port->probe);
    if (silent)
        take_over(port, now_ns);
    else if (rc != FT_OK && port->listener < 0)
        listen_alone(port); /* the listener has just ended */
}

static void begin_probe(struct ft_ras_port *port, uint64_t now_ns)
{
    port->asked = false;
    port->probed_ns = now_ns;
    if (port->listener < 0)
        ft_net_connect(&port->address, NULL, &port->probe);
    else if (comes_here(port, &port->probe))
        port->heard_ns = now_ns;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* "localhost" would need the resolver, which may block. */
static int find_address(const char *text, struct ft_net_address *out)
{
    static const char local[] = "localhost:", any[] = "*:";
    char numeric[64];
    bool is_local = !strncmp(text, local, sizeof local - 1),
         is_any = !strncmp(text, any, sizeof any - 1);
    if (!is_local && !is_any)
        return ft_net_resolve(text, out, 1);
    snprintf(numeric, sizeof numeric, "%s:%.16s", is_local ? "127.0.0.1" : "0.0.0.0",
             strchr(text, ':') + 1);
    return ft_net_resolve(numeric, out, 1);
}

int ft_ras_address(struct ft_net_address *out)
{
    return find_address(ft_param_str(FT_PARAM_RAS_ADDR), out);
}

bool ft_ras_port_open(struct ft_ras_port *port)
{
    uint64_t now_ns = ft_now_ns(ft_env_real());
    *port = (struct ft_ras_port){.listener = -1, .probe = -1, .heard_ns = now_ns};
    if (ft_ras_address(&port->address) < 1) {
        FT_LOG(WARN, "ras", -1, "FTCCL_RAS_ADDR: %s; nobody answers clients", ft_fail_text());
        return false;
    }
    listen_alone(port);
    plan(port, now_ns, 1);
    return true;
}

void ft_ras_port_close(struct ft_ras_port *port)
{
    ft_fd_close(&port->probe);
    ft_fd_close(&port->listener);
}

void ft_ras_port_hurry(struct ft_ras_port *port, uint64_t now_ns)
{
    port->hurry_ns = now_ns + HURRY_NS;
    port->try_ns = now_ns;
}

/* While somebody may just have ended. */
static bool is_hurried(const struct ft_ras_port *port)
{
    return port->listener < 0 && port->try_ns < port->hurry_ns;
}

uint64_t ft_ras_port_due(const struct ft_ras_port *port)
{
    uint64_t due_ns = port->probe >= 0 ? port->probed_ns + PATIENCE_NS : port->due_ns;
    return is_hurried(port) ? ft_min(due_ns, port->try_ns) : due_ns;
}

/* In a process that is alone on its host nobody asks, and there is nobody to take the port. */
static bool is_quiet(const struct ft_ras_port *port, uint64_t now_ns, int local_ranks)
{
    return local_ranks > 1 && now_ns > port->heard_ns + QUIET_NS;
}

void ft_ras_port_tick(struct ft_ras_port *port, uint64_t now_ns, int local_ranks)
{
    if (is_hurried(port) && now_ns >= port->try_ns) {
        port->try_ns = now_ns + TRY_NS;
        listen_alone(port);
    }
    if (port->probe >= 0) {
        look_at_probe(port, now_ns);
        return;
    }
    if (now_ns < port->due_ns)
        return;
    plan(port, now_ns, local_ranks);
    if (port->listener < 0 ? !listen_alone(port) : is_quiet(port, now_ns, local_ranks))
        begin_probe(port, now_ns);
}
