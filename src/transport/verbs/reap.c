/*
 * Ends what takes long to end. A queue pair whose requests have all come back touches nothing any
 * more, but its destruction may wait for packets that are still in the kernel, with soft-RoCE for
 * seconds; and so may the deregistration of memory that it wrote. A thread does it, one after the
 * other, so that no turn of the engine waits. What is given to it has its node within itself, so
 * nothing is allocated. The thread starts with the first one and is joined when the fabric is
 * closed; a child of a fork has none of this.
 */
#include "transport/verbs/verbs.h"

#include <signal.h>

/* Takes the oldest one. The caller holds the lock. */
static struct verbs_dead *take_dead(struct verbs_fabric *f)
{
    struct verbs_dead *dead = f->dead;
    if (!dead)
        return NULL;
    f->dead = dead->next;
    if (!f->dead)
        f->dead_end = &f->dead;
    return dead;
}

static void *reap(void *context)
{
    struct verbs_fabric *f = context;
    pthread_mutex_lock(&f->lock);
    while (f->dead || !f->reaper_ends) {
        struct verbs_dead *dead = take_dead(f);
        if (!dead) {
            pthread_cond_wait(&f->reap, &f->lock);
            continue;
        }
        f->reaping = true;
        pthread_mutex_unlock(&f->lock);
        dead->end(dead);
        pthread_mutex_lock(&f->lock);
        f->reaping = false;
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static bool start_reaper(struct verbs_fabric *f)
{
    sigset_t all, old;
    if (f->has_reaper)
        return true;
    sigfillset(&all);
    /* the user's signals must not arrive in this thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    f->has_reaper = pthread_create(&f->reaper, NULL, reap, f) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (f->has_reaper)
        pthread_setname_np(f->reaper, "ftccl-verbs"); /* for diagnosis */
    return f->has_reaper;
}

void verbs_reap(struct verbs_fabric *f, struct verbs_dead *dead)
{
    if (!start_reaper(f)) {
        dead->end(dead);
        return;
    }
    dead->next = NULL;
    pthread_mutex_lock(&f->lock);
    *f->dead_end = dead;
    f->dead_end = &dead->next;
    pthread_cond_signal(&f->reap);
    pthread_mutex_unlock(&f->lock);
}

bool verbs_reaps(struct verbs_fabric *f)
{
    pthread_mutex_lock(&f->lock);
    const bool any = f->dead || f->reaping;
    pthread_mutex_unlock(&f->lock);
    return any;
}

void verbs_reaper_close(struct verbs_fabric *f)
{
    if (!f->has_reaper)
        return;
    pthread_mutex_lock(&f->lock);
    f->reaper_ends = true;
    pthread_cond_signal(&f->reap);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->reaper, NULL);
    f->has_reaper = false;
}
