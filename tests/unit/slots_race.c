/* Two threads for slots_test.cc. In C, like the header with the atomics. */
#include "tests/unit/slots_race.h"

#include "transport/slots.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 4096

struct race {
    struct ft_slots side[2]; /* 0 sends */
    int awake, rounds;       /* the side that publishes or gives; the other one sleeps */
    atomic_int arrived[2];   /* at the two gates of a round */
    char *saw;               /* [rounds] by the sleeper: something was there */
};

/* Both come here before either goes on. */
static void gate(atomic_int *arrived, int round)
{
    atomic_fetch_add(arrived, 1);
    for (int spins = 0; atomic_load(arrived) < 2 * (round + 1); spins++)
        if (spins > 1000)
            sched_yield();
}

static void take(struct ft_slots *s, bool sender)
{
    struct ft_slots_desc d;
    struct ft_slots_return r;
    while (sender ? !ft_slots_collect(s, &r) : !ft_slots_take(s, &d)) {}
}

static void *sleeper(void *arg)
{
    struct race *race = arg;
    bool sender = race->awake == 1;
    struct ft_slots *s = &race->side[!race->awake];
    for (int i = 0; i < race->rounds; i++) {
        gate(&race->arrived[0], i);
        for (volatile int spin = i % 37; spin > 0; spin = spin - 1) {}
        ft_slots_arm(s, sender, true);
        race->saw[i] = ft_slots_pending(s, sender);
        gate(&race->arrived[1], i);
        take(s, sender);
        ft_slots_arm(s, sender, false);
    }
    return NULL;
}

int slots_race(bool gives, int rounds)
{
    struct race race = {.awake = gives, .rounds = rounds, .saw = calloc((size_t)rounds, 1)};
    struct ft_header h = {.ctx = 1, .len = 8};
    struct ft_slots_return back = {.ctx = 1, .consumed = 1};
    void *memory = aligned_alloc(4096, ft_round_up(ft_slots_bytes(CHUNK), 4096));
    int missed = 0;
    pthread_t thread;
    memset(memory, 0, ft_slots_bytes(CHUNK));
    ft_slots_format(&race.side[0], memory, CHUNK);
    if (ft_slots_attach(&race.side[1], memory, CHUNK) != FT_OK ||
        pthread_create(&thread, NULL, sleeper, &race) != 0)
        abort();
    char *rang = calloc((size_t)rounds, 1);
    for (int i = 0; i < rounds; i++) {
        gate(&race.arrived[0], i);
        if (gives)
            ft_slots_give(&race.side[1], &back);
        else
            ft_slots_publish(&race.side[0], &h, 0, "12345678");
        rang[i] = ft_slots_rings(&race.side[gives], !gives);
        gate(&race.arrived[1], i);
    }
    pthread_join(thread, NULL);
    for (int i = 0; i < rounds; i++)
        missed += !rang[i] && !race.saw[i];
    free(rang);
    free(race.saw);
    free(memory);
    return missed;
}
