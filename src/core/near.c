/*
 * Which ranks of a host have more than the network between them. Every rank's card says, in a part of its own, with whom it shares
 * memory; ranks of one host that say different things talk over TCP, and their communicator chooses its algorithms for that.
 * Decided from cards alone, so that all ranks of a communicator decide alike.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART "near"

/* One number for all who share memory: those of a host, of a process, or nobody else. */
static uint64_t neighbourhood(const struct ft_engine *engine)
{
    bool process = false;
    for (int i = 0; i < engine->ntransports; i++) {
        const char *name = engine->transports[i]->ops->name;
        if (!strcmp(name, "inproc")) process = true;
        else if (strcmp(name, "tcp") != 0) return engine->host;
    }
    uint64_t self[2] = {engine->host, process ? (uint64_t)getpid() : engine->id};
    return ft_hash64(self, sizeof self, process ? 1 : 2);
}

bool ft_near_card(const struct ft_engine *engine, struct ft_card *card)
{
    uint64_t here = neighbourhood(engine);
    return ft_card_put(card, PART, &here, sizeof here);
}

int ft_near_all(const struct ft_comm *comm, bool *near)
{
    const struct ft_view *view = &comm->view;
    *near = true;
    if (view->nhosts >= view->nranks) return FT_OK;
    struct { uint64_t where; bool known; } *hosts = calloc((size_t)view->nhosts, sizeof *hosts);
    if (!hosts) return ft_fail(FT_NOMEM, "no memory for %d hosts", view->nhosts);
    for (int r = 0; r < view->nranks && *near; r++) {
        size_t len = sizeof(uint64_t);
        uint64_t where = r == view->rank ? neighbourhood(comm->engine) : 0;
        const struct ft_peer *peer = comm->peers[r];
        const unsigned char *part = peer && peer->address ? ft_card_part(peer->address, peer->address_bytes, PART, &len) : NULL;
        if ((peer && !part) || len != sizeof where) continue;
        if (part) memcpy(&where, part, sizeof where);
        if (hosts[view->host[r]].known) *near = hosts[view->host[r]].where == where;
        hosts[view->host[r]].known = true;
        hosts[view->host[r]].where = where;
    }
    free(hosts);
    return FT_OK;
}
