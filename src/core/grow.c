/*
 * Growing a communicator. One rank of the parent, the root, has made an id and serves the rendezvous; the joiners come there
 * while the parent goes on computing. They learn the survivors, listen on the child's context, connect, and ask every
 * survivor what became of the grow. When all have asked, the root brings their cards into an agreement of the parent's ranks:
 * the child comes about on all of them or on none, and any of them can tell the joiners, should the root die.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define ASK_NS 20000000u   /* between a joiner's questions */
#define GROWTHS_KEPT 16    /* outcomes remembered for joiners that ask late */
#define PART "grow" /* of the first survivor's card: struct facts */

struct facts { uint64_t ctx, epoch; uint32_t nold; };
struct answer { int32_t status, nranks; }; /* followed by int32_t order[nranks]: places of the table in the child's order */

/* A grow that this engine takes part in. */
struct ft_growth {
    struct ft_growth *next;
    uint64_t ctx;
    int nold, nranks;
    atomic_int status;      /* FT_AGAIN: open; FT_OK; or why it failed. Release after order, acquire by the waiting user */
    atomic_int asked;       /* joiners that listen */
    uint64_t *joiners;      /* [nranks - nold] engine ids that have asked; 0: none yet */
    int32_t *order;         /* [nranks] */
    bool joining;           /* this rank is a joiner */
};

/* ---- records ----------------------------------------------------------------------------------------------------------- */

static void free_growth(struct ft_growth *growth)
{
    free(growth->joiners);
    free(growth->order);
    free(growth);
}

static struct ft_growth *find(const struct ft_engine *engine, uint64_t ctx)
{
    struct ft_growth *growth = engine->growths;
    while (growth && growth->ctx != ctx) growth = growth->next;
    return growth;
}

static int open_growth(struct ft_engine *engine, const struct facts *facts, int nranks, bool joining, struct ft_growth **out)
{
    struct ft_growth *growth = calloc(1, sizeof *growth);
    int rc = growth ? FT_OK : ft_fail(FT_NOMEM, "no memory to grow");
    if (rc == FT_OK) {
        *growth = (struct ft_growth){.ctx = facts->ctx, .nold = (int)facts->nold, .nranks = nranks, .joining = joining,
                                     .joiners = calloc((size_t)nranks, sizeof *growth->joiners), .order = calloc((size_t)nranks, sizeof *growth->order)};
        atomic_store(&growth->status, FT_AGAIN);
        if (!growth->joiners || !growth->order) rc = ft_fail(FT_NOMEM, "no memory to grow");
    }
    if (rc != FT_OK) {
        if (growth) free_growth(growth);
        return rc;
    }
    ft_engine_lock(engine);
    growth->next = engine->growths;
    engine->growths = growth;
    ft_engine_unlock(engine);
    *out = growth;
    return FT_OK;
}

void ft_grow_close(struct ft_engine *engine)
{
    for (struct ft_growth *growth = engine->growths, *next; growth; growth = next) {
        next = growth->next;
        free_growth(growth);
    }
    engine->growths = NULL;
}

/* ---- questions and answers ------------------------------------------------------------------------------------------------ */

static void tell(struct ft_engine *engine, struct ft_peer *peer, const struct ft_growth *growth)
{
    struct ft_ctl_head head = {FT_CTL_TELL, 0, growth->ctx};
    size_t len = sizeof(struct answer) + (size_t)growth->nranks * sizeof(int32_t);
    unsigned char *bytes = malloc(len);
    if (!bytes) return; /* it asks again */
    struct answer answer = {growth->status, growth->nranks};
    memcpy(bytes, &answer, sizeof answer);
    memcpy(bytes + sizeof answer, growth->order, len - sizeof answer);
    ft_control_send(engine, peer, &head, bytes, len);
    free(bytes);
}

static void take_question(struct ft_engine *engine, struct ft_peer *peer, struct ft_growth *growth)
{
    int njoiners = growth->nranks - growth->nold, i = 0;
    while (i < njoiners && growth->joiners[i] && growth->joiners[i] != peer->id) i++;
    if (i == njoiners) return;
    if (!growth->joiners[i]) {
        growth->joiners[i] = peer->id;
        atomic_fetch_add_explicit(&growth->asked, 1, memory_order_release);
    }
    if (growth->status != FT_AGAIN && peer->address) tell(engine, peer, growth);
}

static bool is_permutation(const int32_t *order, int n)
{
    for (int i = 0; i < n; i++) {
        if (order[i] < 0 || order[i] >= n) return false;
        for (int k = 0; k < i; k++)
            if (order[k] == order[i]) return false;
    }
    return true;
}

static void take_answer(struct ft_growth *growth, const unsigned char *data, size_t len_bytes)
{
    struct answer answer;
    size_t want = sizeof answer + (size_t)growth->nranks * sizeof(int32_t);
    if (!growth->joining || growth->status != FT_AGAIN || len_bytes != want) return;
    memcpy(&answer, data, sizeof answer);
    memcpy(growth->order, data + sizeof answer, want - sizeof answer);
    if (answer.nranks != growth->nranks || answer.status == FT_AGAIN) return;
    if (answer.status == FT_OK && !is_permutation(growth->order, growth->nranks)) return; /* a failure has no order */
    atomic_store_explicit(&growth->status, answer.status, memory_order_release);
}

void ft_grow_receive(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head, const void *data, size_t len_bytes)
{
    struct ft_growth *growth = find(engine, head->ctx);
    if (!growth) return; /* not here yet: the joiner asks again */
    if (head->what == FT_CTL_TELL) take_answer(growth, data, len_bytes);
    else if (!growth->joining) take_question(engine, peer, growth);
}

/* ---- the child -------------------------------------------------------------------------------------------------------------- */

/* Cards of all places: first the survivors by their old ranks, then the joiners by the ranks they gave. */
static int64_t joiner_key(const struct ft_card *card)
{
    size_t len;
    int64_t key = INT64_MAX;
    const unsigned char *part = ft_card_part(card->address, card->address_bytes, FT_CARD_KEY, &len);
    if (part && len == sizeof key) memcpy(&key, part, sizeof key);
    return key;
}

/* Places by key; ties by place. */
static void put_in_order(struct ft_growth *growth, const struct ft_decision *decision, const struct ft_card *joiners)
{
    int n = 0, taken = 0, njoiners = growth->nranks - growth->nold;
    int32_t *order = growth->order;
    for (int j = 0; j < njoiners; j++) { /* joiners among themselves, at the end */
        int at = growth->nranks - njoiners + j;
        for (; at > growth->nold && joiner_key(&joiners[order[at - 1] - growth->nold]) > joiner_key(&joiners[j]); at--) order[at] = order[at - 1];
        order[at] = growth->nold + j;
    }
    while (taken < decision->nsurvivors) { /* then the survivors between them; there is room for each */
        int32_t joiner = n + decision->nsurvivors - taken < growth->nranks ? order[n + decision->nsurvivors - taken] : -1;
        bool first = joiner >= 0 && joiner_key(&joiners[joiner - growth->nold]) < decision->keys[taken];
        order[n++] = first ? joiner : decision->order[taken++];
    }
}

struct place { uint64_t engine, host; };

static int open_grown(struct ft_engine *engine, const struct ft_growth *growth, const struct place *places, const struct ft_grow *how,
                      uint64_t epoch, struct ft_comm **out)
{
    int n = growth->nranks;
    struct ft_view view = {.epoch = epoch, .nranks = n};
    int *host = malloc((size_t)n * sizeof *host);
    uint64_t *peer = malloc((size_t)n * sizeof *peer);
    int rc = host && peer ? FT_OK : ft_fail(FT_NOMEM, "no memory for %d ranks", n);
    for (int i = 0; i < n && rc == FT_OK; i++) {
        int same = 0;
        while (same < i && places[growth->order[same]].host != places[growth->order[i]].host) same++;
        host[i] = same < i ? host[same] : view.nhosts++;
        peer[i] = places[growth->order[i]].engine;
        if (peer[i] == engine->id) view.rank = i;
    }
    view.host = host;
    view.peer = peer;
    if (rc == FT_OK) rc = ft_comm_open(engine, &view, growth->ctx, how->name, &how->limits, out);
    free(host);
    free(peer);
    return rc;
}

/* ---- survivors ---------------------------------------------------------------------------------------------------------------- */

/* The cards of the parent's ranks, the first one with the facts that joiners need. */
static int survivors_cards(struct ft_comm *parent, const struct ft_comm_limits *limits, const struct facts *facts, struct ft_card *cards)
{
    struct ft_engine *engine = parent->engine;
    struct ft_card own;
    int rc = ft_engine_card(engine, &own);
    if (rc == FT_OK) ft_card_settings(&own, limits);
    ft_engine_lock(engine); /* another grow may be learning addresses */
    for (int r = 0; r < parent->view.nranks && rc == FT_OK; r++) {
        const struct ft_peer *peer = parent->peers[r];
        cards[r] = own;
        if (peer) {
            cards[r].engine = peer->id;
            cards[r].host = peer->host;
            cards[r].address_bytes = peer->address_bytes;
            memcpy(cards[r].address, peer->address, peer->address_bytes);
        }
        if (r == 0 && !ft_card_put(&cards[0], PART, facts, sizeof *facts)) rc = ft_fail(FT_INTERNAL, "the facts of a grow do not fit a card");
    }
    ft_engine_unlock(engine);
    return rc;
}

static int learn_joiners(struct ft_engine *engine, const struct ft_card *joiners, int n, int first)
{
    int rc = FT_OK;
    ft_engine_lock(engine);
    for (int i = 0; i < n && rc == FT_OK; i++)
        rc = ft_engine_learn(engine, joiners[i].engine, joiners[i].host, joiners[i].address, joiners[i].address_bytes, first + i);
    ft_engine_unlock(engine);
    return rc;
}

struct gathering { struct ft_comm *parent; struct ft_growth *growth; };

static bool all_asked(void *arg)
{
    const struct ft_growth *growth = ((struct gathering *)arg)->growth;
    if (atomic_load(&((struct gathering *)arg)->parent->leaving)) return true;
    return atomic_load_explicit(&growth->asked, memory_order_acquire) == growth->nranks - growth->nold;
}

/* The root waits for the joiners, at most half of the bound that the others have for it. */
static int gather_joiners(struct ft_comm *parent, const struct ft_grow *how, struct ft_growth *growth, const struct facts *facts, struct ft_card *joiners)
{
    struct ft_table *table = NULL;
    uint64_t bound_ns = (uint64_t)parent->limits.init_timeout_ms * 250000u;
    int njoiners = growth->nranks - growth->nold;
    struct ft_card *cards = malloc((size_t)growth->nold * sizeof *cards);
    int rc = cards ? survivors_cards(parent, &how->limits, facts, cards) : ft_fail(FT_NOMEM, "no memory for %d cards", growth->nold);
    if (rc == FT_OK) rc = ft_bootstrap_supply(*how->id, growth->nranks, cards, growth->nold);
    if (rc == FT_OK) rc = ft_bootstrap_collect(*how->id, bound_ns, &parent->leaving, &table);
    free(cards);
    if (rc != FT_OK) return rc;
    memcpy(joiners, table->card + growth->nold, (size_t)njoiners * sizeof *joiners);
    free(table);
    rc = learn_joiners(parent->engine, joiners, njoiners, growth->nold);
    struct gathering gathering = {parent, growth};
    if (rc == FT_OK && !ft_engine_wait(parent->engine, all_asked, &gathering, bound_ns))
        rc = ft_fail(FT_TIMEOUT, "%d of %d joiners came to the rendezvous but not to the survivors", growth->asked, njoiners);
    return rc;
}

/* All joiners' cards, as the root brings them. */
static int take_cards(const struct ft_decision *decision, struct ft_card *joiners, int n)
{
    const unsigned char *at = decision->blob;
    size_t left = decision->blob_bytes;
    for (int i = 0; i < n; i++) {
        int used = ft_card_decode(at, left, &joiners[i]);
        if (used <= 0) return ft_fail(FT_PROTOCOL, "the joiners' cards cannot be understood");
        at += used;
        left -= (size_t)used;
    }
    return left == 0 ? FT_OK : ft_fail(FT_PROTOCOL, "the joiners' cards cannot be understood");
}

/* A record is dropped when many later ones have come. */
static void conclude(struct ft_engine *engine, struct ft_growth *growth, int status)
{
    ft_engine_lock(engine);
    atomic_store_explicit(&growth->status, status, memory_order_release);
    for (int i = 0; i < growth->nranks - growth->nold; i++) {
        struct ft_peer *peer = growth->joiners[i] ? ft_engine_peer(engine, growth->joiners[i]) : NULL;
        if (peer && peer->address) tell(engine, peer, growth);
    }
    int kept = 0;
    for (struct ft_growth **at = &engine->growths; *at;) {
        struct ft_growth *old = *at;
        if (++kept <= GROWTHS_KEPT || old->status == FT_AGAIN) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        free_growth(old);
    }
    ft_engine_unlock(engine);
    ft_engine_kick(engine);
}

/* What the ranks of the parent agreed on: FT_OK and everything is ready for the child. */
static int accept_decision(struct ft_comm *parent, struct ft_growth *growth, const struct ft_decision *decision, struct ft_card *joiners)
{
    int njoiners = growth->nranks - growth->nold;
    int rc = decision->blob_bytes > 0 ? take_cards(decision, joiners, njoiners) : FT_OK;
    if (rc == FT_OK && decision->blob_bytes > 0) rc = learn_joiners(parent->engine, joiners, njoiners, growth->nold); /* also to tell them of a failure */
    for (int r = 0; r < parent->view.nranks; r++)
        if (decision->failed[r]) return ft_fail(FT_PEER, "rank %d died during the grow", r);
    if (!ft_settings_same(decision->flags >> 1)) return ft_fail(FT_MISMATCH, "CommGrow: the ranks have different settings of verify or failurePolicy");
    if (!(decision->flags & 1)) return ft_fail(FT_TIMEOUT, "the grow failed on another rank: see the sentence of the one that made the id");
    if (decision->blob_bytes == 0) return ft_fail(FT_USAGE, "no rank gave the unique id of the grow");
    if (rc == FT_OK) put_in_order(growth, decision, joiners);
    return rc;
}

static int agree_to_grow(struct ft_comm *parent, const struct ft_grow *how, struct ft_growth *growth, const struct facts *facts, struct ft_card *joiners)
{
    int njoiners = growth->nranks - growth->nold, rc = FT_OK;
    unsigned char *blob = malloc((size_t)njoiners * FT_CARD_WIRE_MAX);
    struct ft_agree_input input = {.kind = FT_AGREE_GROW, .flags = 1 | ft_settings_flags(&how->limits) << 1, .key = how->key, .blob = blob};
    const struct ft_decision *decision;
    char why[512] = "";
    if (!blob) return ft_fail(FT_NOMEM, "no memory for %d joiners", njoiners);
    if (how->id) {
        rc = gather_joiners(parent, how, growth, facts, joiners);
        for (int i = 0; i < njoiners && rc == FT_OK; i++) input.blob_bytes += (uint32_t)ft_card_encode(blob + input.blob_bytes, &joiners[i]);
        if (rc != FT_OK) snprintf(why, sizeof why, "%s", ft_fail_text());
        if (rc != FT_OK) input.flags &= ~UINT64_C(1);
    }
    int agreed = ft_comm_agree(parent, &input, &decision);
    if (agreed == FT_OK) agreed = accept_decision(parent, growth, decision, joiners);
    free(blob);
    return rc != FT_OK ? ft_fail(rc, "%s", why) : agreed; /* the root's own reason says more */
}

static int open_on_survivor(struct ft_comm *parent, const struct ft_growth *growth, const struct ft_card *joiners, const struct ft_grow *how,
                            struct ft_comm **out)
{
    struct place *places = malloc((size_t)growth->nranks * sizeof *places);
    if (!places) return ft_fail(FT_NOMEM, "no memory for %d ranks", growth->nranks);
    for (int r = 0; r < growth->nranks; r++) {
        const struct ft_peer *peer = r < growth->nold ? parent->peers[r] : NULL;
        if (r >= growth->nold) places[r] = (struct place){joiners[r - growth->nold].engine, joiners[r - growth->nold].host};
        else places[r] = peer ? (struct place){peer->id, peer->host} : (struct place){parent->engine->id, parent->engine->host};
    }
    int rc = open_grown(parent->engine, growth, places, how, parent->view.epoch + 1, out);
    free(places);
    return rc;
}

static int grow(struct ft_comm *parent, const struct ft_grow *how, struct ft_comm **out)
{
    struct ft_engine *engine = parent->engine;
    int njoiners = how->nranks - parent->view.nranks;
    struct facts facts;
    memset(&facts, 0, sizeof facts);
    facts.ctx = ft_pact_child(parent, FT_AGREE_GROW);
    facts.epoch = parent->view.epoch + 1;
    facts.nold = (uint32_t)parent->view.nranks;
    struct ft_growth *growth;
    *out = NULL;
    if (njoiners < 1) return ft_fail(FT_INVAL, "grow: %d ranks are not more than %d", how->nranks, parent->view.nranks);
    struct ft_card *joiners = calloc((size_t)njoiners, sizeof *joiners);
    if (!joiners) return ft_fail(FT_NOMEM, "no memory for %d joiners", njoiners);
    int rc = ft_engine_bind(engine, facts.ctx);
    if (rc == FT_OK) {
        rc = open_growth(engine, &facts, how->nranks, false, &growth);
        if (rc == FT_OK) {
            rc = agree_to_grow(parent, how, growth, &facts, joiners);
            if (rc == FT_OK) rc = open_on_survivor(parent, growth, joiners, how, out);
            conclude(engine, growth, rc);
        }
        if (!*out) ft_child_quit(parent, facts.ctx);
    }
    free(joiners);
    return rc;
}

int ft_grow_run(struct ft_comm *parent, const struct ft_grow *how, struct ft_comm **out)
{
    ft_retry_pin(parent);
    int rc = grow(parent, how, out);
    ft_retry_unpin(parent);
    return rc;
}

/* ---- joiners -------------------------------------------------------------------------------------------------------------------- */

struct asking { struct ft_engine *engine; struct ft_growth *growth; const struct ft_table *table; const atomic_int *cancel; uint64_t asked_ns; };

/* Asks the survivors again from time to time; all of them, because any may die. */
static bool is_answered(void *arg)
{
    struct asking *asking = arg;
    struct ft_engine *engine = asking->engine;
    if (atomic_load_explicit(&asking->growth->status, memory_order_acquire) != FT_AGAIN || atomic_load(asking->cancel)) return true;
    uint64_t now = ft_now_ns(engine->env);
    if (now - asking->asked_ns < ASK_NS || pthread_mutex_trylock(&engine->drive) != 0) return false;
    asking->asked_ns = now;
    struct ft_ctl_head head = {FT_CTL_ASK, 0, asking->growth->ctx};
    for (int r = 0; r < asking->growth->nold; r++)
        ft_control_send(engine, ft_engine_peer(engine, asking->table->card[r].engine), &head, NULL, 0);
    pthread_mutex_unlock(&engine->drive);
    return false;
}

static int read_facts(const struct ft_table *table, struct facts *facts)
{
    size_t len;
    const unsigned char *part = ft_card_part(table->card[0].address, table->card[0].address_bytes, PART, &len);
    if (part && len == sizeof *facts) memcpy(facts, part, sizeof *facts);
    else return ft_fail(FT_PROTOCOL, "the rendezvous gave no facts about the communicator that grows");
    if (facts->nold >= 1 && facts->nold < (uint32_t)table->nranks) return FT_OK;
    return ft_fail(FT_PROTOCOL, "the rendezvous says that %u of %d ranks are there already", facts->nold, table->nranks);
}

static int await_decision(struct ft_engine *engine, const struct ft_table *table, const struct ft_init *init, struct ft_growth *growth)
{
    struct asking asking = {.engine = engine, .growth = growth, .table = table, .cancel = init->cancel};
    uint64_t bound_ns = (uint64_t)(init->limits.init_timeout_ms + 8 * init->limits.suspect_ms) * 1000000u;
    bool answered = ft_engine_wait(engine, is_answered, &asking, bound_ns);
    if (atomic_load(init->cancel)) return ft_fail(FT_ABORTED, "aborted while the survivors decided on the grow");
    if (!answered) return ft_fail(FT_TIMEOUT, "no survivor said within %llu ms whether the grow came about", (unsigned long long)(bound_ns / 1000000u));
    int status = atomic_load_explicit(&growth->status, memory_order_acquire);
    return status == FT_OK ? FT_OK : ft_fail(FT_PEER, "the survivors could not grow: %s", ft_status_text(status));
}

int ft_grow_join(struct ft_engine *engine, const struct ft_init *init, const struct ft_table *table, struct ft_comm **out)
{
    struct facts facts;
    struct ft_growth *growth;
    struct ft_grow how = {.nranks = table->nranks, .name = init->name, .limits = init->limits};
    int rc = read_facts(table, &facts);
    if (rc == FT_OK) rc = ft_engine_bind(engine, facts.ctx);
    if (rc != FT_OK) return rc;
    rc = open_growth(engine, &facts, table->nranks, true, &growth);
    struct place *places = malloc((size_t)table->nranks * sizeof *places);
    if (rc == FT_OK && !places) rc = ft_fail(FT_NOMEM, "no memory for %d ranks", table->nranks);
    for (int r = 0; r < table->nranks && places; r++) places[r] = (struct place){table->card[r].engine, table->card[r].host};
    if (rc == FT_OK) {
        rc = await_decision(engine, table, init, growth);
        if (rc == FT_OK) rc = open_grown(engine, growth, places, &how, facts.epoch, out);
    }
    free(places);
    if (rc != FT_OK) ft_engine_unbind(engine, facts.ctx);
    return rc;
}
