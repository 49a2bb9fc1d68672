/*
 * membership: how ranks find each other. The process that makes a unique id serves it (one thread and one port for all ids
 * of the process) until every rank has its answer or the id expires; ranks hand in who they are and get the table of all.
 */
#ifndef FT_MEMBERSHIP_H
#define FT_MEMBERSHIP_H

#include "base/base.h"

#define FT_UNIQUE_ID_BYTES 128
#define FT_CARD_BYTES 1024

/* What a rank tells the others. `config` is a digest of everything that must be equal (parameters, tuning, version),
 * `config_text` the same for people, so that a mismatch can be named. */
struct ft_card {
    uint64_t engine, host, config;
    char config_text[160];
    uint32_t address_bytes;
    unsigned char address[FT_CARD_BYTES]; /* transports' addresses, packed by core */
};

struct ft_table {
    int nranks;
    unsigned char key[FT_SECRET_BYTES]; /* for the links of this job, derived from the id's secret */
    uint64_t job;                       /* first context id, derived likewise */
    struct ft_card card[];
};

/* Fills 128 bytes: addresses, port, secret. Starts the service if need be. FT_NOFILE, FT_SYSTEM. Does not wait.
 * With FTCCL_COMM_ID the address is that one and the secret comes from FTCCL_SECRET or FTCCL_SECRET_FILE; then the
 * rank 0 that joins serves it. */
int ft_unique_id_make(unsigned char id[FT_UNIQUE_ID_BYTES]);
/* Is it one of ours (magic, version, checksum)? FT_INVAL or FT_VERSION with a sentence. */
int ft_unique_id_check(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The secret of the links of the job with this id: the same on every rank, known before anybody answers. */
int ft_unique_id_key(const unsigned char id[FT_UNIQUE_ID_BYTES], unsigned char key[FT_SECRET_BYTES]);
int ft_unique_ids_served(void); /* how many ids this process holds; for leak tests */

struct ft_join {
    const unsigned char (*ids)[FT_UNIQUE_ID_BYTES]; /* InitRankScalable passes several, the same on every rank */
    int nids;
    int nranks, rank;
    const struct ft_card *card;
    uint64_t timeout_ns;
    const atomic_int *cancel; /* another thread's abort; looked at at least every 50 ms */
};
/* Blocks until every rank is known or the bound: FT_TIMEOUT names the ranks that never came, FT_USAGE two that claim one
 * rank or different sizes, FT_MISMATCH different configurations, FT_AUTH, FT_VERSION, FT_PEER (a rank died meanwhile, or
 * the id's process), FT_ABORTED. Retries refused connections while the bound lasts only if the id is an explicit address.
 * The table is the caller's to free(). */
int ft_bootstrap_join(const struct ft_join *, struct ft_table **out);
/* Forgets every id and stops the thread; at exit and in tests. */
void ft_bootstrap_stop(void);

#endif
