/*
 * For loading_test.sh: a process that gets its NCCL through a framework, as PyTorch does (the
 * argument names the framework), or opens the file that VLLM_NCCL_SO_PATH names, as vLLM does (no
 * argument). Another NCCL is visible to the whole process (WHEEL). Prints the version and, with our
 * library, also the sum of two ranks.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int call_ints(void **, int, const int *);
struct team {
    int nRanks, rank, stride;
};
typedef int call_reduce(const void *, void *, size_t, int, int, void *, void *);

/* The symbol, whatever type of function it is. */
static void find(void *library, const char *name, void *out)
{
    *(void **)out = dlsym(library, name);
    if (!*(void **)out) {
        printf("no %s\n", name);
        exit(1);
    }
}

static int reduce(void *library)
{
    call_ints *init_all;
    call_reduce *all_reduce;
    int (*group_start)(void), (*group_end)(void), (*destroy)(void *), (*wait)(void *);
    struct team (*rail)(void *), all = {0, 0, 0};
    void *comm[2];
    int value[2] = {3, 4};
    find(library, "ncclCommInitAll", &init_all);
    find(library, "ncclAllReduce", &all_reduce);
    find(library, "ncclGroupStart", &group_start);
    find(library, "ncclGroupEnd", &group_end);
    find(library, "ncclCommDestroy", &destroy);
    find(library, "ftcclStreamSynchronize", &wait); /* of libftccl, which came along */
    find(library, "ncclTeamRail", &rail);
    if (init_all(comm, 2, NULL) || group_start())
        return -1;
    all = rail(comm[1]);
    if (all.nRanks != 2 || all.rank != 1)
        return -2;
    for (int r = 0; r < 2; r++)
        if (all_reduce(&value[r], &value[r], 1, 2, 0, comm[r], NULL))
            return -1;
    if (group_end() || wait(NULL) || destroy(comm[0]) || destroy(comm[1]))
        return -1;
    return value[0] == value[1] ? value[0] : -1;
}

int main(int argc, char **argv)
{
    if (getenv("WHEEL") && !dlopen(getenv("WHEEL"), RTLD_NOW | RTLD_GLOBAL))
        return 1;
    const char *path = argc > 1 ? argv[1] : getenv("VLLM_NCCL_SO_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    int version = 0, (*framework)(void), (*get_version)(int *);
    if (argc > 1) {
        find(library, "framework_version", &framework);
        version = framework();
    } else {
        find(library, "ncclGetVersion", &get_version);
        if (get_version(&version))
            return 1;
    }
    int sum = version == 20101 ? 0 : reduce(library);
    printf("%d %d\n", version, sum);
    if (argc > 1)
        return 0;
    /* It can be let go and comes back. */
    for (int i = 0; i < 5; i++) {
        if (dlclose(library) || dlopen(path, RTLD_NOW | RTLD_NOLOAD) ||
            !(library = dlopen(path, RTLD_NOW)) || reduce(library) != sum) {
            printf("loaded again: %d, not %d\n", library ? reduce(library) : -1, sum);
            return 1;
        }
    }
    return 0;
}
