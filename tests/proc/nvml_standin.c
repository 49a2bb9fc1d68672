/*
 * Stands in for libnvidia-ml.so.1: two GPUs, the second of which is as NVML_STANDIN says: "hot",
 * "lost" (found at first), or the driver does not answer ("hang").
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

static int asked;

static int is(const char *what)
{
    const char *said = getenv("NVML_STANDIN");
    return said && strcmp(said, what) == 0;
}

static int is_second(const void *device)
{
    return device == &asked;
}

EXPORT int nvmlInit_v2(void)
{
    return 0;
}
EXPORT int nvmlShutdown(void)
{
    return 0;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *n)
{
    asked++;
    while (is("hang") && asked > 2)
        pause();
    *n = is("lost") && asked > 2 ? 1 : 2;
    return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    static int first;
    *device = index == 1 ? &asked : &first;
    return 0;
}
EXPORT int nvmlDeviceGetTemperature(const void *device, int sensor, unsigned *out)
{
    *out = is_second(device) && is("hot") ? 95 : 40;
    return sensor;
}
EXPORT int nvmlDeviceGetTemperatureThreshold(const void *device, int which, unsigned *out)
{
    (void)device;
    *out = 90;
    return which != 1;
}
EXPORT int nvmlDeviceGetTotalEccErrors(const void *device, int kind, int since,
                                       unsigned long long *out)
{
    *out = is_second(device) && is("hot") ? 1 : 0;
    return kind != 1 || since != 0;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(const void *device, unsigned long long *out)
{
    *out = is_second(device) && is("hot") ? 0x40 : 0;
    return 0;
}
EXPORT int nvmlDeviceGetRemappedRows(const void *device, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = *pending = 0;
    *failed = is_second(device) && is("hot");
    return 0;
}
