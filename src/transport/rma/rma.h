/*
 * rma: links over a fabric (fabric.h), a network that writes into remote memory. This makes every
 * struct ft_fabric_ops a transport: a provider calls ft_rma_open() in its own open, and takes the
 * rest of its table from FT_RMA_TRANSPORT_OPS.
 */
#ifndef FT_RMA_H
#define FT_RMA_H

#include "transport/rma/fabric.h"
#include "transport/transport.h"

/* Opens the fabric and the side connections. Fails like open of a transport. */
int ft_rma_open(const struct ft_transport_ops *, const struct ft_fabric_ops *,
                const struct ft_transport_config *, struct ft_transport **out);

void ft_rma_close(struct ft_transport *);
int ft_rma_address(struct ft_transport *, void *buf, size_t capacity_bytes);
bool ft_rma_reaches(struct ft_transport *, const void *address, size_t len_bytes);
int ft_rma_connect(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                   struct ft_link **out);
void ft_rma_disconnect(struct ft_link *);
int ft_rma_bind(struct ft_transport *, uint64_t ctx);
void ft_rma_unbind(struct ft_transport *, uint64_t ctx);
int ft_rma_send(struct ft_link *, const struct ft_header *, const void *data, struct ft_send *);
int ft_rma_reserve(struct ft_link *, const struct ft_header *, void **slot);
void ft_rma_commit(struct ft_link *, const struct ft_header *, void *slot);
void ft_rma_cancel(struct ft_link *, const struct ft_header *, void *slot);
int ft_rma_recv(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_msg *);
int ft_rma_peek(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_header *);
void ft_rma_release(struct ft_link *, struct ft_msg *);
bool ft_rma_drained(struct ft_link *);
bool ft_rma_flushed(struct ft_link *);
int ft_rma_poll(struct ft_transport *, struct ft_event *events, int max, bool *busy);
int ft_rma_fd(struct ft_transport *);
bool ft_rma_arm(struct ft_transport *, bool on);
void ft_rma_trim(struct ft_transport *);
int ft_rma_reg(struct ft_transport *, void *addr, size_t len_bytes, void **out);
void ft_rma_unreg(struct ft_transport *, void *registered);
bool ft_rma_measure(struct ft_link *, struct ft_link_path *out);

/* The members of a transport's table that are the same over every fabric. */
#define FT_RMA_TRANSPORT_OPS                                                                    \
    .close = ft_rma_close, .address = ft_rma_address, .reaches = ft_rma_reaches,                \
    .connect = ft_rma_connect, .disconnect = ft_rma_disconnect, .bind = ft_rma_bind,            \
    .unbind = ft_rma_unbind, .send = ft_rma_send, .reserve = ft_rma_reserve,                    \
    .commit = ft_rma_commit, .cancel = ft_rma_cancel, .recv = ft_rma_recv, .peek = ft_rma_peek, \
    .release = ft_rma_release, .drained = ft_rma_drained, .flushed = ft_rma_flushed,            \
    .measure = ft_rma_measure, .poll = ft_rma_poll, .fd = ft_rma_fd, .arm = ft_rma_arm,         \
    .trim = ft_rma_trim, .reg = ft_rma_reg, .unreg = ft_rma_unreg

#endif
