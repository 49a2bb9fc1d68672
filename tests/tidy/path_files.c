/*
 * Finds which functions a call runs. tests/tidy/path_files preloads it into a program that was
 * compiled with -finstrument-functions, which calls the two hooks below. A call begins when
 * PATH_ENTRY (an address) is entered, and lasts until the same thread enters it again. For each
 * function it counts in how many calls the function ran in the thread that makes the calls. At the
 * end of the process, lines "address calls" go to PATH_OUT.pid; the first line has the number of
 * calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SLOTS 16384 /* a power of two, several times the functions of the library */

struct seen {
    void *function;
    unsigned long in_calls, last_call;
};

static struct seen table[SLOTS];
static void *entry;
static unsigned long call; /* 0: none has begun */
static _Thread_local int is_caller;

void __cyg_profile_func_enter(void *function, void *site)
    __attribute__((no_instrument_function, visibility("default")));
void __cyg_profile_func_exit(void *function, void *site)
    __attribute__((no_instrument_function, visibility("default")));

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("PATH_ENTRY");
    entry = text ? (void *)strtoul(text, NULL, 16) : NULL;
}

static struct seen *find_seen(void *function)
{
    size_t k = (size_t)function / 16 % SLOTS;
    while (table[k].function && table[k].function != function)
        k = (k + 1) % SLOTS;
    table[k].function = function;
    return &table[k];
}

void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    if (function == entry) {
        is_caller = 1;
        call++;
    }
    if (!is_caller)
        return;
    struct seen *seen = find_seen(function);
    if (seen->last_call != call) {
        seen->last_call = call;
        seen->in_calls++;
    }
}

void __cyg_profile_func_exit(void *function, void *site)
{
    (void)function;
    (void)site;
}

__attribute__((destructor)) static void end(void)
{
    const char *out = getenv("PATH_OUT");
    char path[4096];
    if (!out || !call)
        return;
    snprintf(path, sizeof(path), "%s.%d", out, (int)getpid());
    FILE *file = fopen(path, "w");
    if (!file)
        return;
    fprintf(file, "0 %lu\n", call);
    for (size_t k = 0; k < SLOTS; k++) {
        if (table[k].function)
            fprintf(file, "%p %lu\n", table[k].function, table[k].in_calls);
    }
    fclose(file);
}
