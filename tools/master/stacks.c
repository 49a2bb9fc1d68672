/*
 * When somebody has been named for a hang, the master asks for the stacks of those who take part:
 * once, and again if a host has come that was not known then. They add to a verdict, and never
 * change it: who does not answer is missing in the groups.
 */
#include "master.h"

#include <string.h>

#define REST_NS 5000000000u /* between two questions; for so long answers are waited for */

void master_drop_stacks(struct master *m)
{
    m->asked.n = 0;
    m->asked.more = false;
    m->asked.signature = 0;
    gathered_clear(&m->gathered);
}

/* The rows of a host came after the others were asked. */
static bool others_have_come(struct master *m)
{
    struct suspects all = {.n = 0};
    master_choose(m, &all, &m->shown);
    return all.n > m->asked.n;
}

void master_look_at_stacks(struct master *m)
{
    struct suspects *s = &m->asked;
    uint64_t signature = look_signature(&m->shown), now_ns = daemon_now_ns();
    bool rested = !s->begun_ns || now_ns - s->begun_ns > REST_NS;
    if (!look_hangs(&m->shown)) {
        master_drop_stacks(m);
    } else if (rested && (signature != s->signature || others_have_come(m))) {
        master_drop_stacks(m);
        master_choose(m, s, &m->shown);
        s->signature = signature;
        master_ask_all(m, s, ROWS_ASK_STACKS);
    }
    /* While answers come, groups of the first few would say that nobody is elsewhere. */
    if (master_stacks_missing(m) == 0 || now_ns - s->begun_ns > REST_NS)
        gathered_show(&m->gathered, &m->shown);
    else
        look_drop_stacks(&m->shown);
}

int master_stacks_missing(const struct master *m)
{
    int missing = 0;
    for (int i = 0; i < m->asked.n; i++)
        missing += !m->asked.here[i];
    return missing;
}

bool master_take_stacks(struct master *m, const struct host *host, const struct daemon_message *of)
{
    struct suspects *s = &m->asked;
    uint32_t request;
    uint64_t engine;
    int at = 0;
    if (!stacks_decode_head(of, &request, &engine))
        return false;
    while (at < s->n && s->engine[at] != engine)
        at++;
    if (request != s->request || at == s->n || s->host[at] != host || s->here[at])
        return true;
    if (!gathered_add(&m->gathered, of))
        return false;
    s->here[at] = true;
    if (!host->local && master_stacks_missing(m) == 0)
        daemon_hurry(m->daemon);
    return true;
}
