/*
 * Runs a libFuzzer target without libFuzzer, on the files and folders named on the command line, or
 * on inputs made from a seed. With clang the same target becomes a fuzzer: clang
 * -fsanitize=fuzzer,address -include config.h -I src tests/fuzz/fuzz_x.c <the library's sources>
 * -lsodium -lpthread
 *
 * fuzz_x [-seed=N] [-runs=N] [file or folder...]
 *
 * A made input is random bytes, or the previous input with a few bytes changed, so that lengths and
 * markers repeat. If a target aborts, the last line says the seed and run that repeat it.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_BYTES 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t next(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    unsigned char *data = f != NULL ? malloc(1 << 20) : NULL;
    if (data != NULL) {
        const size_t n = fread(data, 1, 1 << 20, f);
        unsigned char *exact = malloc(n > 0 ? n : 1); /* so that a sanitizer sees reads beyond it */
        if (exact != NULL) {
            memcpy(exact, data, n);
            fprintf(stderr, "%s (%zu bytes)\n", path, n);
            LLVMFuzzerTestOneInput(exact, n);
        }
        free(exact);
    }
    free(data);
    if (f != NULL)
        fclose(f);
}

static void run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        run_file(path);
        return;
    }
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char name[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        run_path(name);
    }
    if (dir != NULL)
        closedir(dir);
}

static void run_made(uint64_t seed, long runs)
{
    unsigned char input[INPUT_BYTES] = {0};
    size_t size = 0;
    printf("seed %llu, %ld runs; again with -seed=%llu -runs=%ld\n", (unsigned long long)seed, runs,
           (unsigned long long)seed, runs);
    fflush(stdout);
    state = seed;
    for (long i = 0; i < runs; i++) {
        if (size == 0 || next() % 4 == 0) {
            size = next() % (next() % 8 == 0 ? INPUT_BYTES : 160);
            for (size_t at = 0; at < size; at++)
                input[at] = (unsigned char)next();
        } else {
            for (uint64_t n = 1 + next() % 4; n > 0; n--)
                input[next() % size] = (unsigned char)(next() % 3 == 0 ? next() : next() % 4);
        }
        unsigned char *exact = malloc(size > 0 ? size : 1);
        if (exact == NULL)
            exit(2);
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
}

int main(int argc, char **argv)
{
    unsigned long long seed = 1;
    long runs = 20000;
    int paths = 0;

    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-seed=%llu", &seed) == 1 || sscanf(argv[i], "-runs=%ld", &runs) == 1)
            continue;
        run_path(argv[i]);
        paths++;
    }
    if (paths == 0)
        run_made(seed, runs);
    return 0;
}
