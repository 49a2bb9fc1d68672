/*
 * Property: if a group that makes communicators cannot have a thread for each of them, it ends at
 * once with that reason, and leaves nothing behind: no handle, no thread, and no rank that waits
 * for the one that never began. Method: pthread_create() is wrapped, and refuses the calling
 * thread's n-th call.
 */
#include <errno.h>
#include <pthread.h>

#include "tests/proc/proc.h"

namespace
{

thread_local int allowed = -1; /* threads that this thread may still make; below 0: any number */

} // namespace

extern "C" {
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    if (allowed == 0)
        return EAGAIN;
    if (allowed > 0)
        allowed--;
    return __real_pthread_create(thread, attr, run, arg);
}
}

namespace
{

TEST(FewThreads, EndTheWholeGroupAtOnce)
{
    enum { RANKS = 4 };
    ftcclUniqueId id;
    for (int made = 0; made < RANKS; made++) {
        ASSERT_OK(ftcclGetUniqueId(&id)); /* starts the thread that serves it */
        ftcclComm_t comm[RANKS] = {};
        double begin = proc::now();
        ASSERT_OK(ftcclGroupStart());
        for (int r = 0; r < RANKS; r++)
            EXPECT_OK(ftcclCommInitRank(&comm[r], RANKS, id, r));
        allowed = made;
        ftcclResult_t result = ftcclGroupEnd();
        std::string sentence = ftcclGetLastError(nullptr);
        allowed = -1;
        EXPECT_EQ(result, ftcclSystemError) << sentence;
        EXPECT_NE(sentence.find("thread"), std::string::npos) << sentence;
        EXPECT_LT(proc::now() - begin, 10) << "the others waited for a rank that never began";
        for (ftcclComm_t c : comm)
            EXPECT_EQ(c, nullptr);
    }
    EXPECT_TRUE(proc::World(RANKS).works());
}

/* A non-blocking call that cannot begin fails at once: there is nothing to ask GetAsyncError
 * about. */
TEST(FewThreads, LeaveNoHandleOfACommunicatorThatNeverBegan)
{
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (bool group : {false, true}) {
        ftcclUniqueId id;
        ftcclComm_t comm = nullptr;
        ASSERT_OK(ftcclGetUniqueId(&id));
        allowed = 0;
        if (group) {
            EXPECT_OK(ftcclGroupStart());
        }
        ftcclResult_t result = ftcclCommInitRankConfig(&comm, 2, id, 0, &config);
        if (group) {
            EXPECT_OK(result);
            result = ftcclGroupEnd();
        }
        std::string sentence = ftcclGetLastError(nullptr);
        allowed = -1;
        EXPECT_EQ(result, ftcclSystemError) << sentence;
        EXPECT_EQ(comm, nullptr);
    }
}

} // namespace
