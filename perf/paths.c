/* What the telemetry of this process tells of its connections. ftccl-info tells any program the
 * same; here it is read in the process. */
#include "api.h"

#ifdef FT_PERF_NCCL

void api_print_connections(FILE *out)
{
    (void)out; /* not of every library */
}

#else

#include "telemetry/telemetry.h"

#include <unistd.h>

#define FRESH_US 1500000 /* it is written about once a second */

void api_print_connections(FILE *out)
{
    usleep(FRESH_US);
    if (ft_telemetry_print_conns(out) != FT_OK)
        fprintf(stderr, "no paths of process %d: %s\n", (int)getpid(), ft_fail_text());
}

#endif
