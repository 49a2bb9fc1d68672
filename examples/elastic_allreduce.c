/*
 * A training loop that outlives its ranks and takes in new ones, which meet it in DIRECTORY (see
 * launch.h): ftccl-run -n 4 --kill 2@1 --restart elastic_allreduce DIRECTORY SECONDS After an
 * error, before a grow and at the end the ranks agree on what comes next, because one may have
 * finished the step that another lost.
 */
#include "launch.h"

#define COUNT ((size_t)1 << 18)
/* rank 0 puts it into the last element of the gradient: all have it with the same step */
enum wish { GO_ON, GROW, STOP };

/* what new ranks get; update: of the last step */
static struct {
    long step;
    double weight, update;
} model;
static float gradient[COUNT];
static ftcclComm_t comm;
static int rank, nranks, fresh; /* of comm; fresh: it has ranks without the model */
static uint64_t done;           /* collectives on comm that are complete here */
static double end, last;        /* when to stop; when the last step was done */
static struct launch me;

static double now(void)
{
    return launch_clock() - me.start;
}

static void say(const char *what, ftcclResult_t result)
{
    printf("%9.4f s  rank %d: step %ld: %s: %s: %s\n", now(), me.rank, model.step, what,
           ftcclGetErrorString(result), ftcclGetLastError(comm));
}

/* Fenced or broken: the others see this rank fail. */
static void check(const char *what, ftcclResult_t result)
{
    if (result == ftcclSuccess)
        return;
    say(what, result);
    exit(1);
}

/* One step; the sum tells who took part, and in which step. */
static ftcclResult_t step(enum wish *wish)
{
    check("step", ftcclStep(comm, (uint64_t)model.step)); /* for ftccl-diagnose */
    for (size_t i = 0; i < COUNT; i++)
        gradient[i] = (float)(rank + model.step % 1000);
    gradient[COUNT - 1] = rank > 0 ? 0 : now() > end ? STOP : meeting_wanted() ? GROW : GO_ON;
    ftcclResult_t result = ftcclAllReduce(gradient, gradient, COUNT, ftcclFloat, ftcclSum, comm,
                                          NULL);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(NULL);
    if (result != ftcclSuccess)
        return result;
    float sum = (float)(nranks * (nranks - 1) / 2 + nranks * (model.step % 1000));
    for (size_t i = 0; i < COUNT - 1; i++)
        if (gradient[i] != sum)
            check("wrong sum", ftcclInternalError);
    *wish = (enum wish)gradient[COUNT - 1];
    model.weight += model.update = sum;
    if (done++ == (uint64_t)fresh)
        printf("%9.4f s  rank %d: step %ld: done by %d ranks, pause %.1f ms\n", now(), me.rank,
               model.step, nranks, (now() - last) * 1e3);
    model.step++;
    last = now();
    return ftcclSuccess;
}

/* Steps until an error, or until rank 0 wishes something else. New ranks get the model of rank 0,
 * which is an old one. */
static ftcclResult_t train(enum wish *wish)
{
    ftcclResult_t result = ftcclSuccess;
    if (fresh && done == 0) {
        result = ftcclBroadcast(&model, &model, sizeof model, ftcclUint8, 0, comm, NULL);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(NULL);
        if (result == ftcclSuccess && model.step < 0)
            check("nobody has the model", ftcclInternalError);
        done = result == ftcclSuccess;
    }
    for (*wish = GO_ON; result == ftcclSuccess && *wish == GO_ON;)
        result = step(wish);
    return result;
}

static ftcclResult_t grow(ftcclComm_t *bigger)
{
    struct offer offer = {.nranks = nranks + 1};
    if (rank > 0)
        return ftcclCommGrow(comm, offer.nranks, NULL, -1, bigger, NULL);
    check("no id", ftcclCommGetUniqueId(comm, &offer.id));
    if (meeting_offer(&offer) != 0)
        check("no offer", ftcclSystemError);
    return ftcclCommGrow(comm, offer.nranks, &offer.id, -1, bigger, NULL);
}

/* A new rank takes an offer, and the next one if that came to nothing. */
static ftcclResult_t join(void)
{
    struct offer offer;
    ftcclResult_t result = ftcclRemoteError;
    for (int rc; ftcclGetErrorClass(result) == ftcclClassRecoverable && now() < end + 10;)
        if ((rc = meeting_take(&offer)) <= 0)
            result = rc ? ftcclSystemError
                        : ftcclCommGrow(NULL, offer.nranks, &offer.id, offer.nranks - 1, &comm,
                                        NULL);
    return result;
}

int main(int argc, char **argv)
{
    if (argc != 3 || launch_read(&me, argv[1]) != 0)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    end = atof(argv[2]);
    if ((fresh = me.restarts > 0))
        model.step = -1; /* it has no model */
    check("cannot begin", fresh ? join() : ftcclCommInitRank(&comm, me.size, me.id, me.rank));
    for (enum wish wish;;) {
        ftcclComm_t next;
        uint64_t agreed, sound;
        ftcclCommUserRank(comm, &rank);
        ftcclCommCount(comm, &nranks);
        ftcclResult_t result = train(&wish);
        if (ftcclGetErrorClass(result) == ftcclClassRecoverable)
            say("failed", result);
        else
            check("failed for good", result);
        sound = result == ftcclSuccess; /* on this rank; then on all */
        check("no agreement", ftcclCommAgree(comm, &sound));
        check("no agreement", ftcclCommGetLastAgreedOp(comm, &agreed));
        /* another rank lost that step */
        if (done > agreed && done > (uint64_t)fresh)
            model.step--, model.weight -= model.update;
        if (sound && wish == STOP)
            break;
        result = sound ? grow(&next)
                       : ftcclCommShrink(comm, NULL, 0, &next, NULL, FTCCL_SHRINK_DEFAULT);
        /* nobody came: as before */
        if (sound && ftcclGetErrorClass(result) == ftcclClassRecoverable)
            continue;
        check("cannot go on", result);
        fresh = sound || (fresh && agreed == 0);
        ftcclCommDestroy(comm);
        comm = next;
        done = 0;
    }
    printf("%9.4f s  rank %d: end after %ld steps, weight %.0f\n", now(), me.rank, model.step,
           model.weight);
    return ftcclCommDestroy(comm) != ftcclSuccess;
}
