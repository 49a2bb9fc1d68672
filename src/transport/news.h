/*
 * news: the links of a transport of which its poll has something to report, the oldest first. A
 * link has its node within itself, so nothing is allocated. Not thread-safe: the caller holds the
 * engine.
 */
#ifndef FT_NEWS_H
#define FT_NEWS_H

#include "transport/transport.h"

/* Of one link. Zeroed before its first use. */
struct ft_news {
    struct ft_link *link;
    struct ft_news *next;
    bool queued;
    bool made;      /* to report: the link is UP, or was accepted */
    bool told_down; /* it was reported that the link is DOWN, which happens once */
};

struct ft_news_list {
    struct ft_news *first, *last;
};

/* Reports the link in a later ft_news_take(), if there is something to report then. */
void ft_news_add(struct ft_news_list *, struct ft_news *, struct ft_link *);
/* Nothing more is reported of the link, which is about to be freed. */
void ft_news_drop(struct ft_news_list *, struct ft_news *);
/* Writes up to max events. Returns their number. */
int ft_news_take(struct ft_news_list *, struct ft_event *events, int max);

#endif
