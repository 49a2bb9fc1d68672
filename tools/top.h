/*
 * What ftccl-top shows of each rank.
 */
#ifndef FT_TOOLS_TOP_H
#define FT_TOOLS_TOP_H

#include "diagnose_ranks.h"

#define TOP_SORTS(X) \
    X(RANK, "rank") X(STATE, "state") X(BEHIND, "behind") X(INSIDE, "inside") X(RATE, "rate")
enum top_sort {
#define X(name, text) TOP_BY_##name,
    TOP_SORTS(X)
#undef X
        TOP_SORT_COUNT
};
const char *top_sort_name(enum top_sort sort);

struct top_row {
    int rank, pid;
    uint64_t id; /* of its engine */
    char host[64], program[32];
    enum rank_state state;
    char call[96];   /* the one that it is in, or its latest */
    uint64_t behind; /* collectives that others of its largest communicator have called before */
    int waits_for;   /* rank there; -1: nobody */
    bool sends;      /* it waits until that rank takes something; else for something of it */
    double waits_s;  /* how long nothing has moved */
    double step_ms;  /* the latest step; 0: the program marks none */
    double inside;   /* share of time in its latest collectives there; negative: unknown */
    double sent_gbs; /* 1e9 bytes a second since the look before; negative: unknown */
    uint64_t sent;   /* bytes in all */
    int worst_peer;  /* rank there to which its messages take longest; -1: unknown */
    double worst_ms; /* a message to it */
    /* how long its large messages wait on average, by enum ft_latency_part; negative: unknown */
    double large_ms[FT_LATENCY_PARTS];
};

struct top {
    struct top_row *row;
    int n;
    uint64_t now_ns; /* of the snapshot; 0: none yet */
    char job[160];   /* a line about the job, or why there is none */
    char verdict[FT_SENTENCE + 32];
};

struct top_request {
    const char *dir;
    int pid;        /* of a process of the job; 0: the job with a verdict, or the largest one */
    double after_s; /* waits shorter than this are no hang */
    double delay_s;
    enum top_sort sort;
    bool once, json;
};

/* Looks again. Rates are those since the look in *top. Nothing found is no error: the job's line
 * says so. FT_NOMEM; FT_INVAL with a sentence. */
int top_look(struct top *top, const struct top_request *request);
void top_sort_rows(struct top *top, enum top_sort sort);
void top_free(struct top *top);

/* The head line of the table, and a row of it, without a newline; as many columns as fit. */
void top_head(char *text, size_t size);
void top_line(const struct top_row *row, char *text, size_t size);
const char *top_part_name(int part); /* enum ft_latency_part */
void top_print_json(FILE *out, const struct top *top);

/* Shows it in the terminal until the user leaves. Returns the exit status. */
int top_screen(struct top *top, struct top_request *request);

#endif
