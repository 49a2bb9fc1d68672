/* Inside path: the sockets of probes, what their error queues say, and how tables are made. */
#ifndef FT_PATH_PROBE_H
#define FT_PATH_PROBE_H

#include "path/path.h"

#include <sys/socket.h>

/* ---- socket.c: one probe --------------------------------------------------------------------- */

/* Starts a connection that ends after `ttl` hops and is reset when its socket is closed. FT_AGAIN:
 * the port is taken. Other failures as of ft_prober_turn(). The socket is owned. */
int ft_path_probe_start(const struct ft_net_address *from, const struct ft_net_address *to,
                        uint16_t port, int ttl, int *fd_out);

enum ft_path_answer {
    FT_PATH_NOTHING, /* no answer yet */
    FT_PATH_ROUTER,  /* the TTL ended at `by` */
    FT_PATH_REFUSAL, /* `by` says that the host cannot be reached */
    FT_PATH_HOST,    /* the host answered */
    FT_PATH_UNCLEAR, /* the connection ended, but nothing says where */
};
/* Reads what became of a connection. It does not block. */
enum ft_path_answer ft_path_poll(int fd, const struct ft_net_address *to, unsigned char by[16]);

/* ---- answer.c: messages of the error queue --------------------------------------------------- */

#define FT_PATH_CONTROL_BYTES 512 /* room for the control messages of one error */
/* What a message of a socket's error queue says of a probe to `to`; sets `by` for ROUTER and
 * REFUSAL. NOTHING: it is about something else, truncated or malformed. */
enum ft_path_answer ft_path_read_answer(struct msghdr *, const struct ft_net_address *to,
                                        unsigned char by[16]);

/* ---- classes.c ------------------------------------------------------------------------------- */

/* What was heard of one port. */
struct ft_path_trace {
    uint16_t port;
    struct ft_path_hop hop[FT_PATH_HOPS];
};
/* Fills in the ports and classes of a table whose nhops is set. FT_NOMEM changes nothing. */
int ft_path_classify(struct ft_path_table *, const struct ft_path_trace *trace, int ntraces);

#endif
