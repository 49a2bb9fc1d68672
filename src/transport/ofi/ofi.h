/*
 * The inside of ofi, a fabric over libfabric: load.c loads the library and chooses a provider;
 * ofi.c has the fabric and its memory; way.c has the ways. The transport is ft_transport_ofi.
 *
 * A way is a reliable-datagram endpoint of its own, with an address vector of one entry and a
 * completion queue of its own. So closing the endpoint is the fence: whatever a provider does in
 * software on this side for a peer's writes, it does for an endpoint. (Closing the memory region is
 * not enough: a provider may be in the middle of receiving into it.)
 *
 * Not thread-safe: the caller holds the engine, also for reg and unreg.
 */
#ifndef FT_OFI_H
#define FT_OFI_H

#include "transport/rma/rma.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OFI_DEPTH 256            /* most writes on a way; then FT_AGAIN */
#define OFI_NAME_BYTES 256       /* of an endpoint */
#define OFI_DIAL_NS 10000000000u /* the first write takes at most so long to move */
#define OFI_LOOK_NS 1000000u     /* look_ns where queues have no descriptors, or too many */
#define OFI_PROVIDER_BYTES 16    /* of a provider's name in the hint */

/* What is called of the library; the rest goes through the tables of its objects. */
struct ofi_library {
    void *handle;
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *context);
    const char *(*strerror)(int errnum);
    uint32_t (*version)(void);
};

struct ofi {
    struct ft_fabric base; /* must be the first field */
    struct ft_fabric_config config;
    const struct ofi_library *library;
    struct fi_info *info; /* the chosen one */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    int epoll_fd; /* of the completion queues; -1: they have no descriptors */
    struct ofi_way *ways;
    struct ofi_way *first; /* polled first next time */
    unsigned nways;
    unsigned unwatched; /* ways whose queues epoll_fd does not report */
};

struct ofi_region {
    struct ft_fabric_region base; /* must be the first field */
    struct fid_mr *mr;
    void *desc;
};

/* A write that has not ended. */
struct ofi_op {
    struct fi_context2 context; /* some providers use it until the write ends */
    struct ofi_op *next;        /* free ones */
};

struct ofi_way {
    struct ft_fabric_way base; /* must be the first field */
    struct ofi *ofi;
    struct ofi_way *next;
    struct ofi_region *into;
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    int wait_fd;    /* -1: none */
    bool unwatched; /* epoll_fd does not take it */
    fi_addr_t peer;
    uint64_t peer_key, peer_at; /* of the region that it writes into */
    bool connected, failed, stopping, stopped;
    bool wrote;        /* a write has ended well */
    uint64_t stuck_ns; /* since when the provider takes none; 0: it does */
    unsigned written;  /* not reported yet */
    struct ofi_op *free;
    char why[FT_FABRIC_TEXT_BYTES]; /* it has failed */
    bool told;
    char peer_text[128];
    struct ofi_op op[OFI_DEPTH];
};

/* load.c */
/* Loads the library and finds the best provider for a fabric. unasked: only one for devices that
 * nothing else reaches. FT_NOTSUP: there is none; FT_INVAL: there is none of the name that
 * FTCCL_OFI_PROVIDER gives. */
int ofi_choose(bool unasked, const struct ofi_library **library, struct fi_info **out);
/* Logs why a provider that was named should not be used, if it should not. */
void ofi_warn(const char *provider, int rank);
void ofi_describe(FILE *out);

/* way.c */
int ofi_way_open(struct ft_fabric *, unsigned index, struct ft_fabric_region *into, void *user,
                 struct ft_fabric_way **out);
size_t ofi_way_info(struct ft_fabric_way *, void *buf);
int ofi_way_connect(struct ft_fabric_way *, const void *info, size_t len_bytes);
int ofi_write(struct ft_fabric_way *, const struct ft_fabric_write *);
void ofi_way_stop(struct ft_fabric_way *);
void ofi_way_close(struct ft_fabric_way *);
void ofi_way_describe(const struct ft_fabric_way *, char *buf);
/* Takes at most max events of one way. */
int ofi_way_poll(struct ofi_way *, struct ft_fabric_event *events, int max);

#endif
