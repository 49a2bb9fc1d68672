/*
 * Groups: the calls of a thread between GroupStart and GroupEnd. Operations become one entry on
 * their streams. Management calls (init, split) run in parallel threads. Outside a group every
 * operation is a group of its own.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

/* An operation of a group. It owns a use of the handle, a reference to the stream, and the op. */
struct member {
    ftcclComm_t comm;
    struct ft_stream *stream;
    struct ft_op *op;
};

static _Thread_local struct group {
    int depth;
    int error;      /* the first error of the calls inside */
    char text[512]; /* the sentence of that error */
    struct member *members;
    int nmembers, capacity;
    struct ft_job *jobs, **jobs_end;
} group;

/* Records that a call inside the group failed; GroupEnd will return the error. */
static void note_error(int status)
{
    if (group.depth == 0 || group.error != FT_OK)
        return;
    group.error = status;
    snprintf(group.text, sizeof group.text, "%.*s", (int)sizeof group.text - 1, ft_fail_text());
}

ftcclResult_t ft_fail_call(ftcclComm_t comm, int status)
{
    note_error(status);
    ftcclResult_t result = ft_return(comm, status);
    if (comm)
        ft_comm_leave(comm);
    return result;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void run_job(struct ft_job *job)
{
    ftcclComm_t comm = job->comm;
    job->status = job->run(job);
    if (job->status != FT_OK) {
        snprintf(job->text, sizeof job->text, "%.*s", (int)sizeof job->text - 1, ft_fail_text());
        ft_return(comm, job->status);
    }
}

static void free_job(struct ft_job *job)
{
    if (job->failed_alone) {
        ft_comm_leave(job->comm);
        ft_comm_wait_users(job->comm);
        ft_comm_handle_end(job->comm);
    } else
        ft_comm_leave(job->comm);
    free(job->ids);
    free(job->exclude);
    free(job);
}

static void free_chain(struct ft_job *job)
{
    for (struct ft_job *then; job; job = then) {
        then = job->then;
        free_job(job);
    }
}

/* Drops a job and the jobs after it, which will never run. */
static void discard_chain(struct ft_job *job)
{
    for (struct ft_job *j = job; j; j = j->then)
        ft_job_drop(j);
    free_chain(job);
}

/* Runs the calls of one communicator in their order, which is the same on all ranks. Returns the
 * first that failed, or NULL. */
static struct ft_job *run_chain(struct ft_job *job)
{
    struct ft_job *failed = NULL;
    for (; job; job = job->then) {
        run_job(job);
        if (job->status != FT_OK && !failed)
            failed = job;
    }
    return failed;
}

/* The blocking jobs of a group. When one fails, the others are cancelled: otherwise they would wait
 * for its rank until their time limit. The group then returns the error of the first. */
struct ft_job_set {
    struct ft_job *jobs;
    struct ft_job *_Atomic failed;
};

static void cancel_all(const struct ft_job_set *set)
{
    for (struct ft_job *job = set->jobs; job; job = job->next)
        if (job->comm->blocking)
            atomic_store(&job->comm->cancel, 1);
}

static void *joined_job(void *arg)
{
    struct ft_job *job = arg, *none = NULL, *failed = run_chain(job);
    if (failed && atomic_compare_exchange_strong(&job->set->failed, &none, failed))
        cancel_all(job->set);
    return NULL;
}

static void *detached_job(void *arg)
{
    struct ft_job *job = arg;
    const struct ft_job *failed = run_chain(job);
    if (failed)
        atomic_store_explicit(&job->comm->error, failed->status, memory_order_release);
    atomic_fetch_sub_explicit(&job->comm->busy, 1, memory_order_release);
    free_chain(job);
    return NULL;
}

/* Starts the job of a non-blocking communicator. The call returns at once, and GetAsyncError gives
 * the result. */
static int detach_job(struct ft_job *job)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* GetAsyncError reports the latest call only */
    atomic_store_explicit(&job->comm->error, FT_OK, memory_order_relaxed);
    atomic_fetch_add_explicit(&job->comm->busy, 1, memory_order_relaxed);
    int err = pthread_create(&job->thread, &attr, detached_job, job);
    pthread_attr_destroy(&attr);
    if (err == 0)
        return FT_AGAIN;
    atomic_fetch_sub_explicit(&job->comm->busy, 1, memory_order_relaxed);
    discard_chain(job);
    return ft_fail(FT_SYSTEM, "cannot start a thread: %s", strerror(err));
}

ftcclResult_t ft_job_start(struct ft_job *job)
{
    if (group.depth > 0) {
        if (!group.jobs)
            group.jobs_end = &group.jobs;
        *group.jobs_end = job;
        group.jobs_end = &job->next;
        ft_comm_leave_to_group(job->comm);
        return ftcclSuccess;
    }
    if (!job->comm->blocking)
        return ft_return(NULL, detach_job(job));
    run_job(job);
    int status = job->status;
    free_job(job);
    return ft_result(status);
}

/* Starts the threads of blocking jobs. If a job gets no thread, it and the jobs after it never run,
 * and the others are cancelled, because they would wait for its rank. */
static int start_joined(struct ft_job_set *set)
{
    int err = 0;
    for (struct ft_job *job = set->jobs; job && !err; job = job->next) {
        if (!job->comm->blocking)
            continue;
        job->set = set;
        err = pthread_create(&job->thread, NULL, joined_job, job);
        job->started = err == 0;
    }
    if (!err)
        return FT_OK;
    cancel_all(set);
    return ft_fail(FT_SYSTEM, "cannot start a thread for a communicator of the group: %s",
                   strerror(err));
}

/* Chains the jobs of each communicator; only the first one stays in the list. */
static void chain_jobs(struct ft_job *jobs)
{
    for (struct ft_job **at = &jobs->next, *job; (job = *at) != NULL;) {
        struct ft_job *first = jobs;
        while (first->comm != job->comm)
            first = first->next;
        if (first == job) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        job->next = NULL;
        while (first->then)
            first = first->then;
        first->then = job;
    }
}

static int run_jobs(struct ft_job *jobs)
{
    chain_jobs(jobs);
    struct ft_job_set set = {.jobs = jobs};
    int rc = start_joined(&set);
    for (struct ft_job *job = jobs; job; job = job->next)
        if (job->started)
            pthread_join(job->thread, NULL);
    struct ft_job *failed = atomic_load(&set.failed);
    if (rc == FT_OK && failed)
        rc = ft_fail(failed->status, "%s", failed->text);
    for (struct ft_job *job = jobs, *next; job; job = next) {
        next = job->next;
        if (job->comm->blocking && !job->started)
            discard_chain(job);
        else if (job->comm->blocking)
            free_chain(job);
        else {
            int status = detach_job(job);
            if (rc == FT_OK)
                rc = status;
        }
    }
    return rc;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void drop_member(struct member *member)
{
    if (member->op)
        ft_op_free(member->op);
    ft_stream_release(member->stream);
    ft_comm_leave(member->comm);
}

/* Sends of a rank to itself must match receives of the same group. */
static int check_self(const struct member *members, int n)
{
    for (int i = 0; i < n; i++) {
        const struct member *m = &members[i];
        bool self = (m->op->coll.kind == FT_SEND || m->op->coll.kind == FT_RECV) &&
                    !m->comm->limits.concurrent && m->op->coll.root == ft_comm_rank(m->comm->core);
        if (!self)
            continue;
        int balance = 0;
        for (int k = 0; k < n; k++) {
            const struct ft_op *op = members[k].op;
            if (members[k].comm != m->comm || op->coll.root != ft_comm_rank(m->comm->core))
                continue;
            balance += (op->coll.kind == FT_SEND) - (op->coll.kind == FT_RECV);
        }
        if (balance != 0)
            return ft_fail(
                FT_USAGE,
                "rank %d has a send or receive to itself without its partner in the group",
                ft_comm_rank(m->comm->core));
    }
    return FT_OK;
}

static int distinct_streams(const struct member *members, int n, struct ft_stream **streams)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < count && streams[k] != members[i].stream)
            k++;
        if (k == count)
            streams[count++] = members[i].stream;
    }
    return count;
}

static int submit(struct member *members, int n)
{
    struct ft_stream *few[8], **streams = n <= 8 ? few : malloc((size_t)n * sizeof *streams);
    int rc = check_self(members, n);
    struct ft_entry *entry = rc == FT_OK && streams
                                 ? ft_entry_new(streams, distinct_streams(members, n, streams))
                                 : NULL;
    if (rc == FT_OK && !entry)
        rc = ft_fail(FT_NOMEM, "no memory for a group of %d operations", n);
    for (int i = 0; i < n && rc == FT_OK; i++) {
        struct ft_work *work = ft_entry_work(entry, members[i].comm->core);
        if (!work)
            rc = ft_fail(FT_NOMEM, "no memory for a group of %d operations", n);
        else {
            ft_work_add(work, members[i].op);
            members[i].op = NULL;
        }
    }
    if (rc == FT_OK && (rc = ft_graph_capture(entry)) == FT_AGAIN)
        rc = ft_entry_submit(entry);
    if (rc != FT_OK && entry)
        ft_entry_free(entry);
    if (streams != few)
        free(streams);
    for (int i = 0; i < n; i++)
        drop_member(&members[i]);
    return rc;
}

static int add_member(const struct member *member)
{
    if (group.nmembers == group.capacity) {
        int want = group.capacity ? 2 * group.capacity : 16;
        struct member *grown = realloc(group.members, (size_t)want * sizeof *grown);
        if (!grown)
            return ft_fail(FT_NOMEM, "no memory for a group of %d operations", want);
        group.members = grown;
        group.capacity = want;
    }
    group.members[group.nmembers++] = *member;
    return FT_OK;
}

bool ft_group_is_open(void)
{
    return group.depth > 0;
}

ftcclResult_t ft_group_add(ftcclComm_t comm, ftcclStream_t stream, struct ft_op *op)
{
    struct member member = {comm, NULL, op};
    int rc = FT_OK;
    if (op->on_queue)
        member.stream = ft_gpu_order(comm->core);
    else if (stream) {
        rc = ft_stream_enter(stream, &member.stream);
        if (rc == FT_OK)
            ft_stream_ref(member.stream), ft_stream_leave(stream);
    } else if (!(member.stream = ft_engine_null_stream(comm->core->engine)))
        rc = ft_fail(FT_INVAL, "the communicator has been destroyed");
    if (!stream && !op->on_queue && rc == FT_OK)
        ft_null_stream_used(comm->core->engine);
    if (rc != FT_OK) {
        ft_op_free(op);
        return ft_fail_call(comm, rc);
    }
    if (group.depth == 0)
        return ft_return(NULL, submit(&member, 1));
    rc = add_member(&member);
    if (rc == FT_OK)
        ft_comm_leave_to_group(comm);
    else {
        note_error(rc);
        drop_member(&member);
    }
    return ft_return(NULL, rc);
}

static int fail_ended(void)
{
    return ft_fail(FT_USAGE,
                   "a communicator was destroyed or aborted in the group that has calls of it");
}

void ft_group_remove_comm(ftcclComm_t comm)
{
    int kept = 0, before = group.nmembers;
    bool any = false;
    for (int i = 0; i < before; i++) {
        if (group.members[i].comm == comm) {
            ft_comm_enter_from_group(comm);
            drop_member(&group.members[i]);
        } else
            group.members[kept++] = group.members[i];
    }
    group.nmembers = kept;
    for (struct ft_job **at = &group.jobs, *job; (job = *at) != NULL;) {
        group.jobs_end = &job->next;
        if (job->comm == comm) {
            *at = job->next;
            group.jobs_end = at;
            ft_comm_enter_from_group(comm);
            discard_chain(job);
            any = true;
        } else
            at = &job->next;
    }
    if (any || kept < before)
        note_error(fail_ended());
}

/* ---- start and end --------------------------------------------------------------------------- */

FT_EXPORT ftcclResult_t ftcclGroupStart(void)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        group.depth++;
    return ft_return(NULL, rc);
}

static void clear_group(void)
{
    for (int i = 0; i < group.nmembers; i++)
        drop_member(&group.members[i]);
    for (struct ft_job *job = group.jobs, *next; job; job = next) {
        next = job->next;
        discard_chain(job);
    }
    free(group.members);
    memset(&group, 0, sizeof group);
}

/* Counts the group's calls as inside their communicators again. Returns false if one of these has
 * ended. */
static bool take_all(void)
{
    bool all = true;
    for (int i = 0; i < group.nmembers; i++)
        all &= ft_comm_enter_from_group(group.members[i].comm);
    for (struct ft_job *job = group.jobs; job; job = job->next)
        all &= ft_comm_enter_from_group(job->comm);
    return all;
}

static int leave_group(bool *outermost)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && group.depth == 0)
        rc = ft_fail(FT_USAGE, "GroupEnd without GroupStart");
    *outermost = rc == FT_OK && --group.depth == 0;
    if (!*outermost)
        return rc;
    bool all = take_all();
    if (group.error != FT_OK)
        rc = ft_fail(group.error, "%s", group.text);
    else if (group.jobs && group.nmembers)
        rc = ft_fail(FT_USAGE, "a group makes communicators or enqueues operations, not both");
    else if (!all)
        rc = fail_ended();
    return rc;
}

FT_EXPORT ftcclResult_t ftcclGroupEnd(void)
{
    bool outermost;
    ft_thread_enters(FT_THREAD_GROUP, __builtin_return_address(0));
    int rc = leave_group(&outermost);
    if (!outermost)
        return ft_return(NULL, rc);
    if (rc != FT_OK) {
        clear_group();
        return ft_return(NULL, rc);
    }
    struct group taken = group;
    memset(&group, 0, sizeof group);
    if (taken.jobs)
        rc = run_jobs(taken.jobs);
    else if (taken.nmembers)
        rc = submit(taken.members, taken.nmembers);
    free(taken.members);
    return ft_return(NULL, rc);
}

static double cost_of(const struct member *member)
{
    struct ft_comm *core = member->comm->core;
    const struct ft_coll *coll = &member->op->coll;
    struct ft_tuning *tuning = &core->tuning;
    if (coll->kind == FT_WAIT)
        return 0;
    if (!ft_kind_is_collective(coll->kind))
        return tuning->costs.local_latency_ns + (double)coll->count *
                                                    (double)ft_type_size(coll->type) *
                                                    tuning->costs.local_ns_per_byte;
    struct ft_plan plan;
    ft_engine_lock(core->engine);
    int rc = ft_comm_plan(core, coll, &plan);
    double cost = rc == FT_OK ? ft_algo_cost_ns(&plan, tuning) : 0;
    ft_engine_unlock(core->engine);
    return cost;
}

FT_EXPORT ftcclResult_t ftcclGroupSimulateEnd(ftcclSimInfo_t *simInfo)
{
    bool outermost, good = !simInfo || (simInfo->magic == FTCCL_SIM_INFO_MAGIC &&
                                        simInfo->size >= sizeof *simInfo);
    int rc = leave_group(&outermost);
    if (rc != FT_FORKED && !good) {
        rc = ft_fail(
            FT_INVAL,
            "GroupSimulateEnd: simInfo was not initialised with FTCCL_SIM_INFO_INITIALIZER");
        note_error(rc);
    }
    if (!outermost)
        return ft_return(NULL, rc);
    double ns = 0;
    for (int i = 0; i < group.nmembers && rc == FT_OK; i++)
        ns += cost_of(&group.members[i]);
    if (simInfo && rc == FT_OK)
        simInfo->estimatedTime = (float)(ns * 1e-9);
    clear_group();
    return ft_return(NULL, rc);
}
