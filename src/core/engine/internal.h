/*
 * What the files of the engine share. The floors above include engine.h alone.
 */
#ifndef FT_ENGINE_INTERNAL_H
#define FT_ENGINE_INTERNAL_H

#include "core/engine/engine.h"

/* A link of the peer is down, or another one waits to replace it. The floor above gives back what
 * communicators hold of it; then ft_engine_news_done() closes it. */
void ft_peer_link_ends(struct ft_engine *engine, struct ft_peer *peer, bool sender);
/* frees peers that nothing refers to any more */
void ft_peer_forget_past(struct ft_engine *engine);
/* frees the peers and their links when the engine closes */
void ft_peer_free_all(struct ft_engine *engine);
void ft_links_take_overdue(struct ft_engine *engine);
/* Tells the transport of the peer's receiving link where the peer listens, if that is known. */
void ft_links_peer_at(struct ft_peer *peer);
void ft_links_count(struct ft_engine *engine); /* writes their counts into telemetry */

#endif
