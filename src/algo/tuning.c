/*
 * Costs: the defaults, the table of measured costs that replaces them, the digest by which ranks
 * compare them at initialisation, and the sum that turns an algorithm's work into predicted
 * nanoseconds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "algo/choice.h"
#include "algo/parts.h"

#define FT_ITEMS(X) /* names in the table, lowest and highest sensible value */ \
    X(local_latency_ns, 1, 1e9)                                                 \
    X(local_ns_per_byte, 1e-5, 1e4)                                             \
    X(remote_latency_ns, 1, 1e9)                                                \
    X(remote_ns_per_byte, 1e-5, 1e4)                                            \
    X(loopback_latency_ns, 1, 1e9)                                              \
    X(loopback_ns_per_byte, 1e-5, 1e4)                                          \
    X(loopback_message_ns, 0, 1e9)                                              \
    X(reduce_ns_per_byte, 0, 1e4)                                               \
    X(step_ns, 0, 1e9)

#define LINE_CHARS 256
/* cost for the receiver of a remote message that arrives beside others, as a part of its latency */
#define CROWD 0.1
#define TINY_BYTES 24 /* such a message takes one cache line between ranks of a host */

/* Measured: docs/decisions/0004-default-costs.md. Those of networks over TCP. */
static const struct ft_costs default_costs = {
    .local_latency_ns = 600,
    .local_ns_per_byte = 0.115,
    .remote_latency_ns = 15000,
    .remote_ns_per_byte = 0.5,
    .loopback_latency_ns = 1400,
    .loopback_ns_per_byte = 0.14,
    .loopback_message_ns = 2300,
    .reduce_ns_per_byte = 0.04,
    .step_ns = 700,
};

/* One bit for each cost: what a table has given. */
enum {
#define X(item, low, high) PLACE_##item,
    FT_ITEMS(X)
#undef X
};

void ft_tuning_default(struct ft_tuning *tuning)
{
    *tuning = (struct ft_tuning){
        .chunk_bytes = 131072,
        .several_bytes = 131072,
        .chunks = 4,
        .choice = "",
        .local_links = true,
        .network = FT_OVER_TCP,
        .costs = default_costs,
    };
    tuning->costs.cores_per_host = ft_cores();
}

/* Sets the item `name`. Returns false if there is no such item or the value is out of its range. */
static bool tuning_set(struct ft_tuning *tuning, const char *name, double value)
{
#define X(item, low, high)                        \
    if (strcmp(name, #item) == 0) {               \
        tuning->costs.item = value;               \
        tuning->given |= 1u << PLACE_##item;      \
        return value >= (low) && value <= (high); \
    }
    FT_ITEMS(X)
#undef X
    if (strcmp(name, "cores_per_host") != 0 || !(value >= 1 && value <= 1e6))
        return false;
    tuning->costs.cores_per_host = (int)value;
    return true;
}

/* Parses one line, "name value" or "best ...". Blank lines and text after a # are skipped. */
static int tuning_line(struct ft_tuning *tuning, struct ft_rules *rules, const char *path,
                       int number, char *line)
{
    line[strcspn(line, "#\r\n")] = 0;
    char *rest, *end;
    char *name = strtok_r(line, " \t=", &rest);
    if (!name)
        return FT_OK;
    if (!strcmp(name, "best"))
        return ft_rule_parse(rules, path, number, &rest);
    char *text = strtok_r(NULL, " \t=", &rest);
    if (!text)
        return ft_fail(FT_INVAL, "%s:%d: '%s' has no value", path, number, name);
    double value = strtod(text, &end);
    if (*end || strtok_r(NULL, " \t", &rest))
        return ft_fail(FT_INVAL, "%s:%d: '%s' is not a number and nothing else", path, number,
                       text);
    if (!tuning_set(tuning, name, value))
        return ft_fail(FT_INVAL, "%s:%d: '%s' is no cost's name or %s is out of its range", path,
                       number, name, text);
    return FT_OK;
}

int ft_tuning_load(struct ft_tuning *tuning, struct ft_rules *rules, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return ft_fail(FT_INVAL, "tuning table %s: %s", path, strerror(errno));
    /* a bad table changes nothing */
    struct ft_tuning loaded = *tuning;
    struct ft_rules found = *rules;
    char line[LINE_CHARS];
    int status = FT_OK;
    for (int number = 1; status == FT_OK && fgets(line, sizeof line, file); number++) {
        if (!strchr(line, '\n') && strlen(line) == sizeof line - 1)
            status = ft_fail(FT_INVAL, "%s:%d: line is longer than %d characters", path, number,
                             LINE_CHARS - 2);
        else
            status = tuning_line(&loaded, &found, path, number, line);
    }
    if (status == FT_OK && ferror(file))
        status = ft_fail(FT_INVAL, "tuning table %s cannot be read", path);
    fclose(file);
    if (status != FT_OK)
        return status;
    *rules = found;
    *tuning = loaded;
    tuning->rules = rules;
    return FT_OK;
}

int ft_tuning_read(struct ft_tuning *tuning, struct ft_rules *rules,
                   bool (*is_network)(const char *name))
{
    ft_tuning_default(tuning);
    *rules = (struct ft_rules){.is_network = is_network};
    tuning->chunk_bytes = tuning->several_bytes = (size_t)ft_param_int(FT_PARAM_CHUNK_BYTES);
    tuning->chunks = (int)ft_param_int(FT_PARAM_CHUNKS);
    tuning->choice = ft_param_str(FT_PARAM_ALGO);
    const char *table = ft_param_str(FT_PARAM_TUNE_FILE);
    return *table ? ft_tuning_load(tuning, rules, table) : FT_OK;
}

size_t ft_tuning_first_bytes(const struct ft_tuning *tuning)
{
    int chunks = tuning->chunks_before ? tuning->chunks_before : tuning->chunks;
    return ft_max(ft_min(tuning->chunk_bytes * (size_t)chunks, FT_CHUNK_MOST), tuning->chunk_bytes);
}

size_t ft_tuning_chunk(const struct ft_tuning *tuning, enum ft_kind kind)
{
    return tuning->pulls && !ft_kind_reduces(kind) ? ft_tuning_first_bytes(tuning)
                                                   : tuning->chunk_bytes;
}

void ft_tuning_network(struct ft_tuning *tuning, const char *name, bool rdma,
                       const struct ft_network_costs *costs)
{
    tuning->network = ft_over_network(tuning->rules, name);
    tuning->rdma = rdma;
    if (!costs)
        return;
#define TAKE(item, of_network)                 \
    if (!(tuning->given & 1u << PLACE_##item)) \
        tuning->costs.item = costs->of_network;
    TAKE(remote_latency_ns, latency_ns)
    TAKE(remote_ns_per_byte, ns_per_byte)
    TAKE(loopback_latency_ns, loopback_latency_ns)
    TAKE(loopback_ns_per_byte, loopback_ns_per_byte)
    TAKE(loopback_message_ns, loopback_message_ns)
#undef TAKE
}

void ft_tuning_links(struct ft_tuning *tuning, enum ft_links links)
{
    tuning->local_links = links == FT_LINKS_LOCAL;
    if (tuning->local_links)
        return;
    tuning->costs.local_latency_ns = tuning->costs.loopback_latency_ns;
    tuning->costs.local_ns_per_byte = tuning->costs.loopback_ns_per_byte;
    if (links != FT_LINKS_LOOPBACK || tuning->rdma)
        return;
    tuning->chunk_bytes = ft_tuning_first_bytes(tuning);
    tuning->chunks = 1;
    tuning->peer_lanes = true;
}

/* Costs that the table gives although they are the defaults: they hold over every network. */
static unsigned given_defaults(const struct ft_tuning *tuning)
{
    unsigned same = 0;
#define X(item, low, high)                        \
    if (tuning->costs.item == default_costs.item) \
        same |= 1u << PLACE_##item;
    FT_ITEMS(X)
#undef X
    return same & tuning->given;
}

uint64_t ft_tuning_digest(const struct ft_tuning *tuning)
{
    const char *choice = tuning->choice ? tuning->choice : "";
    uint64_t digest = ft_hash64(choice, strlen(choice), 0);
#define MIX(field) digest = ft_hash64(&(field), sizeof(field), digest);
#define X(item, low, high) MIX(tuning->costs.item)
    MIX(tuning->chunk_bytes)
    MIX(tuning->chunks)
    FT_ITEMS(X)
    MIX(tuning->costs.cores_per_host)
    unsigned same = given_defaults(tuning);
    if (same)
        MIX(same)
    const struct ft_rules *rules = tuning->rules;
    if (rules && rules->nnetworks > 0)
        digest = ft_hash64(rules->networks, (size_t)rules->nnetworks * sizeof rules->networks[0],
                           digest);
    if (rules && rules->nrules > 0)
        digest = ft_hash64(rules->rule, (size_t)rules->nrules * sizeof rules->rule[0], digest);
#undef X
#undef MIX
    return digest;
}

uint64_t ft_tuning_table_digest(const struct ft_tuning *tuning)
{
    struct ft_tuning table = *tuning;
    table.choice = "";
    table.chunk_bytes = 0;
    table.chunks = 0;
    return ft_tuning_digest(&table);
}

double ft_work_sharing(const struct ft_view *view, const struct ft_tuning *tuning)
{
    double cores = tuning->costs.cores_per_host > 0 ? tuning->costs.cores_per_host : 1,
           ranks = ft_host_size_max(view);
    return ranks > cores ? ranks / cores : 1;
}

double ft_work_ns(const struct ft_view *view, const struct ft_tuning *tuning,
                  const struct ft_work *work)
{
    if (!tuning->local_links && !tuning->rdma && view->nhosts == 1)
        return ft_work_loopback_ns(view, tuning, work);
    const struct ft_costs *c = &tuning->costs;
    double shared = ft_work_sharing(view, tuning);
    double flows = work->flows > 1 ? work->flows : 1;
    /* factor on a hop: the receiver waits for its core while other ranks use it */
    double turns = tuning->local_links ? (1 + shared) / 2 : 1;
    double message_ns = tuning->local_links ? 0 : c->loopback_message_ns;
    double cpu = work->hops_local * (turns * c->local_latency_ns + message_ns) +
                 work->bytes_local * c->local_ns_per_byte + work->reduced * c->reduce_ns_per_byte +
                 work->steps * c->step_ns;
    double remote_messages = work->hops_remote + CROWD * work->crowd;
    return cpu * shared + remote_messages * c->remote_latency_ns +
           work->bytes_remote * c->remote_ns_per_byte * flows;
}

double ft_messages(const struct ft_tuning *tuning, double bytes)
{
    if (bytes > 0 && bytes <= TINY_BYTES && tuning->local_links)
        return 0.5;
    double lanes = tuning->chunks < FT_LANES ? tuning->chunks : FT_LANES,
           chunks = bytes / (double)tuning->chunk_bytes;
    double cut = chunks * FT_SMALLEST_SHARE < lanes ? chunks * FT_SMALLEST_SHARE : lanes,
           messages = 1 + (cut - 1) / 2;
    if (messages < chunks)
        messages = chunks;
    return messages > 1 ? messages : 1;
}

struct ft_work ft_work_doubling(const struct ft_view *view, const struct ft_tuning *tuning,
                                int rounds, double bytes)
{
    int inside = ft_log2_floor(ft_host_size_max(view));
    if (inside > rounds)
        inside = rounds;
    struct ft_work work = {.steps = rounds * ft_messages(tuning, bytes)};
    work.hops_local = inside;
    work.hops_remote = rounds - inside;
    if (view->nhosts == 1) {
        work.hops_local = rounds;
        work.hops_remote = 0;
    }
    work.bytes_local = work.hops_local * bytes;
    work.bytes_remote = work.hops_remote * bytes;
    work.flows = ft_host_size_max(view);
    return work;
}

void ft_work_add_bytes(const struct ft_view *view, struct ft_work *work, double bytes)
{
    *(view->nhosts > 1 ? &work->bytes_remote : &work->bytes_local) += bytes;
}

struct ft_work ft_work_rounds(const struct ft_view *view, const struct ft_tuning *tuning,
                              double hops, double bytes)
{
    struct ft_work work = {.steps = hops * ft_messages(tuning, bytes)};
    if (view->nhosts > 1) {
        work.hops_remote = hops;
        work.bytes_remote = hops * bytes;
    } else {
        work.hops_local = hops;
        work.bytes_local = hops * bytes;
    }
    return work;
}
