#include <ftccl.h>
#include <stdio.h>

#define RANKS 4
#define CHECK(call)                                                                        \
    do {                                                                                   \
        ftcclResult_t r_ = (call);                                                         \
        if (r_ != ftcclSuccess) {                                                          \
            fprintf(stderr, "%s: %s\n", ftcclGetErrorString(r_), ftcclGetLastError(NULL)); \
            return 1;                                                                      \
        }                                                                                  \
    } while (0)

int main(void)
{
    ftcclComm_t comm[RANKS];
    float value[RANKS];
    CHECK(ftcclCommInitAll(comm, RANKS, NULL)); /* four ranks in this process */
    CHECK(ftcclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        value[r] = (float)(r + 1);
        CHECK(ftcclAllReduce(&value[r], &value[r], 1, ftcclFloat, ftcclSum, comm[r], NULL));
    }
    CHECK(ftcclGroupEnd());
    CHECK(ftcclStreamSynchronize(NULL)); /* waits, and tells what failed */
    for (int r = 0; r < RANKS; r++)
        printf("rank %d has %g\n", r, value[r]);
    for (int r = 0; r < RANKS; r++)
        CHECK(ftcclCommDestroy(comm[r]));
    return 0;
}
