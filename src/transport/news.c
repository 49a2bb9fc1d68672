/*
 * The list of news.h. Invariant: a node is queued if and only if it is in the list.
 */
#include "transport/news.h"

void ft_news_add(struct ft_news_list *list, struct ft_news *n, struct ft_link *link)
{
    n->link = link;
    if (n->queued)
        return;
    n->queued = true;
    n->next = NULL;
    *(list->last ? &list->last->next : &list->first) = n;
    list->last = n;
}

void ft_news_drop(struct ft_news_list *list, struct ft_news *n)
{
    struct ft_news **at = &list->first, *previous = NULL;
    if (!n->queued)
        return;
    for (; *at != n; at = &(*at)->next)
        previous = *at;
    *at = n->next;
    if (list->last == n)
        list->last = previous;
    n->queued = false;
}

int ft_news_take(struct ft_news_list *list, struct ft_event *events, int max)
{
    int count = 0;
    while (list->first && count < max) {
        struct ft_news *n = list->first;
        if (n->made) {
            n->made = false;
            events[count++] = (struct ft_event){n->link->sender ? FT_EVENT_UP : FT_EVENT_ACCEPTED,
                                                n->link};
        }
        if (n->link->state == FT_LINK_DOWN && !n->told_down) {
            if (count == max)
                break;
            n->told_down = true;
            events[count++] = (struct ft_event){FT_EVENT_DOWN, n->link};
        }
        ft_news_drop(list, n);
    }
    return count;
}
