/*
 * Everything that depends on versions: the version that is claimed, the configurations of older
 * callers, and results that they do not know.
 */
#include "nccl/shim.h"

#include <stdio.h>
#include <string.h>

#define KNOWS_TIMEOUT NCCL_VERSION(2, 29, 0)

/* version of the oldest configuration seen; 0: none; relaxed, because no other data depends on
 * it */
static atomic_uint oldest;

__attribute__((constructor)) static void attach(void)
{
    ft_shim_attach();
}

/* ---- the version that is claimed ------------------------------------------------------------- */

static int claimed_version(void)
{
    const char *text = ft_shim_version();
    int major, minor, patch;
    char rest;
    if (!*text)
        return NCCL_VERSION_CODE;
    if (sscanf(text, "%d.%d.%d%c", &major, &minor, &patch, &rest) == 3 && major == 2 &&
        minor >= 9 && minor < 100 && patch >= 0 && patch < 100)
        return NCCL_VERSION(major, minor, patch);
    ft_shim_fail(NULL, FT_INVAL,
                 "FTCCL_NCCL_VERSION is %s, not of the form 2.28.9; %d.%d.%d is taken", text,
                 NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return NCCL_VERSION_CODE;
}

CALL(ncclResult_t, GetVersion, (int *version))
{
    if (!version)
        return ft_nccl_result(ft_shim_fail(NULL, FT_INVAL, "GetVersion: version is NULL"));
    *version = claimed_version();
    return ncclSuccess;
}

void ft_nccl_announce(void)
{
    char text[32];
    int code = claimed_version();
    snprintf(text, sizeof text, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
    ft_shim_announce(text);
}

/* ---- results --------------------------------------------------------------------------------- */

ncclResult_t ft_nccl_result(ftcclResult_t result)
{
    if (result != ftcclTimeout)
        return (ncclResult_t)result;
    unsigned version = atomic_load_explicit(&oldest, memory_order_relaxed);
    return (version ? version : (unsigned)claimed_version()) < KNOWS_TIMEOUT ? ncclRemoteError
                                                                             : ncclTimeout;
}

/* ---- configurations -------------------------------------------------------------------------- */

/* The version of NCCL that introduced each field. The size of the struct is not enough: new fields
 * have replaced padding. */
static const struct field {
    const char *name;
    size_t at, size;
    unsigned since;
} fields[] = {
#define FIELD(name, since) \
    {#name, offsetof(ncclConfig_t, name), sizeof(((ncclConfig_t *)0)->name), since},
    FIELD(blocking, NCCL_VERSION(2, 14, 0)) FIELD(cgaClusterSize, NCCL_VERSION(2, 17, 0)) FIELD(
        minCTAs, NCCL_VERSION(2, 17, 0)) FIELD(maxCTAs, NCCL_VERSION(2, 17, 0))
        FIELD(netName, NCCL_VERSION(2, 17, 0)) FIELD(splitShare, NCCL_VERSION(2, 18, 0)) FIELD(
            trafficClass, NCCL_VERSION(2, 26, 0)) FIELD(commName, NCCL_VERSION(2, 27, 0))
            FIELD(collnetEnable, NCCL_VERSION(2, 27, 0)) FIELD(CTAPolicy, NCCL_VERSION(2, 27, 0))
                FIELD(shrinkShare, NCCL_VERSION(2, 27, 0)) FIELD(nvlsCTAs, NCCL_VERSION(2, 27, 0))
                    FIELD(nChannelsPerNetPeer, NCCL_VERSION(2, 28, 0))
                        FIELD(nvlinkCentricSched, NCCL_VERSION(2, 28, 0))
                            FIELD(graphUsageMode, NCCL_VERSION(2, 29, 0))
                                FIELD(numRmaCtx, NCCL_VERSION(2, 29, 0))
                                    FIELD(maxP2pPeers, NCCL_VERSION(2, 30, 0))
                                        FIELD(graphStreamOrdering, NCCL_VERSION(2, 30, 5))};

/* ftcclConfig_t has the same fields at the same offsets. */
#define SAME_PLACE(name) \
    _Static_assert(offsetof(ncclConfig_t, name) == offsetof(ftcclConfig_t, name), #name)
SAME_PLACE(blocking);
SAME_PLACE(netName);
SAME_PLACE(commName);
SAME_PLACE(nvlinkCentricSched);
SAME_PLACE(graphStreamOrdering);
_Static_assert(sizeof(ncclConfig_t) == offsetof(ftcclConfig_t, options),
               "ftccl's options come after NCCL's fields");

static void note_caller(unsigned version)
{
    unsigned known = atomic_load_explicit(&oldest, memory_order_relaxed);
    while ((known == 0 || version < known) &&
           !atomic_compare_exchange_weak_explicit(&oldest, &known, version, memory_order_relaxed,
                                                  memory_order_relaxed)) {}
}

ftcclResult_t ft_nccl_config(ftcclComm_t comm, const ncclConfig_t *config, ftcclConfig_t *out)
{
    *out = (ftcclConfig_t)FTCCL_CONFIG_INITIALIZER;
    if (config->magic != NCCL_API_MAGIC ||
        config->size < offsetof(ncclConfig_t, blocking) + sizeof config->blocking)
        return ft_shim_fail(comm, FT_INVAL,
                            "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
    note_caller(config->version);
    for (size_t i = 0; i < FT_ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        if (config->version >= f->since && f->at + f->size <= config->size)
            memcpy((char *)out + f->at, (const char *)config + f->at, f->size);
    }
    return ftcclSuccess;
}
