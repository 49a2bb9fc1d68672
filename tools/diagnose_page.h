/*
 * What the sections of the HTML page share. Strings from telemetry are hostile: they go through
 * put_text() only. There is no script in the page, and its policy lets the browser run and fetch
 * nothing.
 */
#ifndef FT_TOOLS_DIAGNOSE_PAGE_H
#define FT_TOOLS_DIAGNOSE_PAGE_H

#include "diagnose_ranks.h"

#define SHOWN 64 /* ranks in a matrix, in the drawing of time and in the table */

struct page {
    FILE *out;
    const struct ft_snapshot *s;
    const struct report *report;
    struct ranks ranks;
    int shown[SHOWN]; /* rows, in their order: all, or those that matter and a sample */
    int nshown;
    int *column; /* [ranks.n] place in shown, or -1 */
};

/* Escaped, for text and for values of attributes. */
void put_text(FILE *out, const char *text);
void put_duration(FILE *out, uint64_t ns); /* "12.3 s" */
void put_bytes(FILE *out, uint64_t bytes); /* "1.5 GB" */
/* "rank 3 (pid 4711 on node7)" */
void put_rank(const struct page *, int row);
/* "AllReduce(count 4, float32, sum), operation 21 of communicator world" */
void put_call(const struct page *, const struct ft_snap_member *, uint64_t sig, uint64_t seq);
/* The name of the communicator, or its context. */
void put_name(FILE *out, const struct ft_snap_member *);
/* The row of whom the member waits for; -1: nobody is known. */
int waits_for(const struct page *, const struct ft_snap_member *);

/* Whether a rank in a drawing of `shown` has its number beside it, if there is room for one every
 * so many ranks: culprits have, others where it does not lie over those. */
bool has_label(const struct page *, int place, int apart);

/* The sections. */
void put_maps(const struct page *);
void put_times(const struct page *);
void put_graph(const struct page *);
void put_overview(const struct page *);
void put_table(const struct page *);
void put_stacks(const struct page *);

#endif
