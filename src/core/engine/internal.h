/*
 * What the files of the engine share among themselves. The floors above include engine.h alone.
 */
#ifndef FT_ENGINE_INTERNAL_H
#define FT_ENGINE_INTERNAL_H

#include "core/engine/engine.h"

/* A link of the peer is down, or another one waits in its place: the floor above gives back what
 * communicators hold of it, then ft_engine_news_done() closes it. */
void ft_peer_link_ends(struct ft_engine *engine, struct ft_peer *peer, bool sender);
void ft_peer_forget_past(struct ft_engine *engine); /* peers that nobody refers to any more */
void ft_peer_free_all(struct ft_engine *engine);    /* with their links; the engine closes */
void ft_links_take_overdue(struct ft_engine *engine);
void ft_links_count(struct ft_engine *engine); /* into telemetry */

#endif
