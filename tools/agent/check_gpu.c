/*
 * GPUs, by NVML where the driver has brought it. It is loaded at run time; without it there are no
 * GPUs. A call may hang with the driver, so a thread makes them, and one that has not come back is
 * what the check says.
 */
#include "checks_parts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"
#define GPUS_MOST 16
#define LATE_NS 10000000000u /* as in ByteRobust: a driver that does not answer for 10 s hangs */

/* The part of NVML's stable interface that is used. */
typedef void *device_t;
enum { NVML_SUCCESS = 0, NVML_TEMPERATURE_GPU = 0 };
enum { NVML_THRESHOLD_SLOWDOWN = 1, NVML_ERROR_UNCORRECTED = 1, NVML_ECC_VOLATILE = 0 };
#define NVML_REASON_HW_SLOWDOWN 0x08ull
#define NVML_REASON_SW_THERMAL 0x20ull
#define NVML_REASON_HW_THERMAL 0x40ull
#define NVML_REASON_HW_POWER_BRAKE 0x80ull

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*handle)(unsigned, device_t *);
    int (*temperature)(device_t, int, unsigned *);
    int (*threshold)(device_t, int, unsigned *);
    int (*errors)(device_t, int, int, unsigned long long *);
    int (*reasons)(device_t, unsigned long long *);
    int (*remapped)(device_t, unsigned *, unsigned *, unsigned *, unsigned *);
};

struct gpu {
    bool answers;
    unsigned temperature, slowdown, remap_failed, remap_pending;
    unsigned long long uncorrected, reasons;
};

struct check_gpus {
    void *library;
    struct nvml nvml;
    pthread_t thread;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t wake;
    bool stops, running;
    uint64_t begun_ns; /* the last look of the thread */
    struct gpu gpu[GPUS_MOST];
    int n;
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void ask(const struct nvml *nvml, unsigned index, struct gpu *out)
{
    device_t device;
    unsigned corrected, uncorrected;
    *out = (struct gpu){0};
    if (nvml->handle(index, &device) != NVML_SUCCESS)
        return;
    out->answers = nvml->temperature(device, NVML_TEMPERATURE_GPU, &out->temperature) ==
                   NVML_SUCCESS;
    if (nvml->threshold(device, NVML_THRESHOLD_SLOWDOWN, &out->slowdown) != NVML_SUCCESS)
        out->slowdown = 0;
    if (nvml->errors(device, NVML_ERROR_UNCORRECTED, NVML_ECC_VOLATILE, &out->uncorrected) !=
        NVML_SUCCESS)
        out->uncorrected = 0;
    if (nvml->reasons(device, &out->reasons) != NVML_SUCCESS)
        out->reasons = 0;
    if (nvml->remapped(device, &corrected, &uncorrected, &out->remap_pending, &out->remap_failed) !=
        NVML_SUCCESS)
        out->remap_pending = out->remap_failed = 0;
}

static void ask_all(struct check_gpus *g)
{
    struct gpu gpu[GPUS_MOST];
    unsigned n = 0;
    if (g->nvml.count(&n) != NVML_SUCCESS)
        n = 0;
    n = (unsigned)ft_min(n, GPUS_MOST);
    for (unsigned i = 0; i < n; i++)
        ask(&g->nvml, i, &gpu[i]);
    pthread_mutex_lock(&g->mutex);
    g->n = (int)ft_max(n, g->n); /* one that has gone is told as lost */
    memset(g->gpu, 0, sizeof g->gpu);
    memcpy(g->gpu, gpu, n * sizeof *gpu);
    g->running = false;
    pthread_mutex_unlock(&g->mutex);
}

static void *run(void *arg)
{
    struct check_gpus *g = arg;
    pthread_mutex_lock(&g->mutex);
    while (!g->stops) {
        if (!g->running) {
            pthread_cond_wait(&g->wake, &g->mutex);
            continue;
        }
        pthread_mutex_unlock(&g->mutex);
        ask_all(g);
        pthread_mutex_lock(&g->mutex);
    }
    pthread_mutex_unlock(&g->mutex);
    return NULL;
}

/* ---- the library ----------------------------------------------------------------------------- */

static bool find_calls(struct check_gpus *g)
{
    const struct {
        const char *name;
        void *to;
    } call[] = {
        {"nvmlInit_v2", &g->nvml.init},
        {"nvmlShutdown", &g->nvml.shutdown},
        {"nvmlDeviceGetCount_v2", &g->nvml.count},
        {"nvmlDeviceGetHandleByIndex_v2", &g->nvml.handle},
        {"nvmlDeviceGetTemperature", &g->nvml.temperature},
        {"nvmlDeviceGetTemperatureThreshold", &g->nvml.threshold},
        {"nvmlDeviceGetTotalEccErrors", &g->nvml.errors},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", &g->nvml.reasons},
        {"nvmlDeviceGetRemappedRows", &g->nvml.remapped},
    };
    for (size_t i = 0; i < FT_ARRAY_LEN(call); i++) {
        void *found = dlsym(g->library, call[i].name);
        if (!found)
            return false;
        memcpy(call[i].to, &found, sizeof found);
    }
    return g->nvml.init() == NVML_SUCCESS;
}

static void open_gpus(struct checks *c)
{
    struct check_gpus *g = calloc(1, sizeof *g);
    if (!g)
        return;
    g->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->wake, NULL);
    if (g->library && find_calls(g) && pthread_create(&g->thread, NULL, run, g) == 0) {
        c->gpus = g;
        return;
    }
    if (g->library)
        dlclose(g->library);
    free(g);
}

/* ---- judging --------------------------------------------------------------------------------- */

static void judge_heat(struct checks *c, const char *what, const struct gpu *gpu)
{
    char name[48];
    unsigned limit = gpu->slowdown ? gpu->slowdown : 90;
    snprintf(name, sizeof name, "%s temperature", what);
    check_judge(c, name, gpu->temperature, (struct check_limit){limit - 5.0, limit - 1.0},
                "%s has %u degrees; from %u it slows down", what, gpu->temperature, limit);
    bool slow = gpu->reasons & (NVML_REASON_HW_SLOWDOWN | NVML_REASON_SW_THERMAL |
                                NVML_REASON_HW_THERMAL | NVML_REASON_HW_POWER_BRAKE);
    snprintf(name, sizeof name, "%s clocks", what);
    check_judge(c, name, slow, (struct check_limit){0.5, 0},
                slow ? "%s is slowed down by heat or power (reasons %#llx)"
                     : "nothing slows %s down (reasons %#llx)",
                what, gpu->reasons);
}

static void judge_gpu(struct checks *c, int index, const struct gpu *gpu)
{
    char what[16], name[48];
    snprintf(what, sizeof what, "gpu %d", index);
    check_judge(c, what, !gpu->answers, (struct check_limit){0.25, 0.5},
                gpu->answers ? "%s answers" : "%s is lost: the driver does not find it", what);
    if (!gpu->answers)
        return;
    judge_heat(c, what, gpu);
    snprintf(name, sizeof name, "%s memory errors", what);
    check_judge(c, name, (double)gpu->uncorrected, (struct check_limit){0.25, 0.5},
                "%s: %llu memory errors could not be corrected", what, gpu->uncorrected);
    snprintf(name, sizeof name, "%s rows", what);
    check_judge(c, name, gpu->remap_failed ? 2 : gpu->remap_pending, (struct check_limit){0.5, 1.5},
                gpu->remap_failed    ? "%s: a row of memory could not be replaced"
                : gpu->remap_pending ? "%s: rows of memory are replaced at the next reset"
                                     : "%s: no row of memory waits to be replaced",
                what);
}

void check_gpus(struct checks *c)
{
    if (!c->gpus_tried)
        open_gpus(c);
    c->gpus_tried = true;
    struct check_gpus *g = c->gpus;
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    bool hangs = g->running && c->now_ns > g->begun_ns && c->now_ns - g->begun_ns > LATE_NS;
    check_judge(c, "gpu driver", hangs, (struct check_limit){0.25, 0.5},
                hangs ? "the GPU driver has not answered for 10 s" : "the GPU driver answers");
    for (int i = 0; i < g->n && !hangs; i++)
        judge_gpu(c, i, &g->gpu[i]);
    if (!g->running) {
        g->running = true;
        g->begun_ns = c->now_ns;
        pthread_cond_signal(&g->wake);
    }
    pthread_mutex_unlock(&g->mutex);
}

/* A thread that hangs in the driver is left behind: the process ends. */
void check_gpus_close(struct checks *c)
{
    struct check_gpus *g = c->gpus;
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    g->stops = true;
    bool hangs = g->running;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->mutex);
    if (hangs) {
        pthread_detach(g->thread);
        return;
    }
    pthread_join(g->thread, NULL);
    g->nvml.shutdown();
    dlclose(g->library);
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->wake);
    free(g);
}
