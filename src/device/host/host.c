/*
 * The host device: the calling thread reduces ordinary memory at once, with the best vector kernels
 * that the processor has. It has no state after open; any number of engines share one device.
 */
#include "device/host/host.h"
#include "device/host/fpenv.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TILE_BYTES 4096
#define HUGE_PAGE ((size_t)2 << 20)

const struct ft_host_isa *const ft_host_isas[] = {&ft_host_avx512, &ft_host_avx2,   &ft_host_sse2,
                                                  &ft_host_neon,   &ft_host_scalar, NULL};

struct host_device {
    struct ft_device base;
    const struct ft_host_isa *isa;
    char name[32];
};

static int host_open(struct ft_device **out)
{
    struct host_device *host = calloc(1, sizeof *host);
    if (!host)
        return ft_fail(FT_NOMEM, "no memory for the host device");
    const struct ft_host_isa *const *isa = ft_host_isas;
    while (!(*isa)->usable())
        isa++;
    host->isa = *isa;
    snprintf(host->name, sizeof host->name, "host %s", host->isa->name);
    host->base = (struct ft_device){.ops = &ft_device_host, .name = host->name};
    *out = &host->base;
    return FT_OK;
}

static void host_close(struct ft_device *device)
{
    free(FT_CONTAINER(device, struct host_device, base));
}

static size_t page_round(size_t len_bytes)
{
    size_t page = len_bytes >= HUGE_PAGE ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    return len_bytes > SIZE_MAX - page ? 0 : ft_round_up(ft_max(len_bytes, 1), page);
}

/* Allocates from the arena if possible, so that other processes can read the memory in place.
 * Otherwise it maps memory; from the size of a huge page on it is aligned to one: the mapping is
 * made longer by a huge page and trimmed. */
static int host_alloc(struct ft_device *device, size_t len_bytes, void **out)
{
    (void)device;
    if (ft_arena_alloc(len_bytes, out) == FT_OK)
        return FT_OK;
    size_t len = page_round(len_bytes), slack = len >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *map = MAP_FAILED;
    if (len && len <= SIZE_MAX - slack)
        map = mmap(NULL, len + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return ft_fail(FT_NOMEM, "no memory for a buffer of %zu bytes", len_bytes);
    if (slack) {
        char *mem = (char *)ft_round_up((uintptr_t)map, HUGE_PAGE);
        size_t before = (size_t)(mem - map);
        if (before)
            munmap(map, before);
        if (slack > before)
            munmap(mem + len, slack - before);
        madvise(mem, len, MADV_HUGEPAGE);
        map = mem;
    }
    *out = map;
    return FT_OK;
}

static void host_free(struct ft_device *device, void *ptr, size_t len_bytes)
{
    (void)device;
    if (ptr && !ft_arena_free(ptr))
        munmap(ptr, page_round(len_bytes));
}

static bool host_owns(struct ft_device *device, const void *ptr)
{
    (void)device;
    return ptr != NULL;
}

/* Divides the elements of `tile` in place, truncating towards zero. */
#define DIVIDE(T, W)                               \
    for (size_t i = 0; i < count; i++) {           \
        T x;                                       \
        memcpy(&x, tile + i * sizeof x, sizeof x); \
        x = (T)(x / (W)divisor);                   \
        memcpy(tile + i * sizeof x, &x, sizeof x); \
    }
static void tile_divide(enum ft_type type, char *tile, size_t count, uint32_t divisor)
{
    switch (type) {
    case FT_INT8:
        DIVIDE(int8_t, int64_t) break;
    case FT_UINT8:
        DIVIDE(uint8_t, uint32_t) break;
    case FT_INT32:
        DIVIDE(int32_t, int64_t) break;
    case FT_UINT32:
        DIVIDE(uint32_t, uint32_t) break;
    case FT_INT64:
        DIVIDE(int64_t, int64_t) break;
    default:
        DIVIDE(uint64_t, uint64_t) break;
    }
}

/* An integer average. The sum of a tile goes to the stack, is divided there and copied out. */
static void reduce_tiles(const struct ft_host_isa *isa, const struct ft_reduce *r)
{
    char tile[TILE_BYTES] __attribute__((aligned(FT_CACHE_LINE)));
    size_t size = ft_type_size(r->type), per_tile = TILE_BYTES / size;
    struct ft_reduce part = *r;
    part.divide = false;
    part.streaming = 0;
    part.ndst = 1;
    part.dst[0] = tile;
    for (size_t done = 0; done < r->count; done += part.count) {
        part.count = ft_min(per_tile, r->count - done);
        for (int k = 0; k < r->nsrc; k++)
            part.src[k] = (const char *)r->src[k] + done * size;
        isa->kernel[r->type][r->op.red](&part);
        tile_divide(r->type, tile, part.count, r->op.divisor);
        for (int d = 0; d < r->ndst; d++)
            memcpy((char *)r->dst[d] + done * size, tile, part.count * size);
    }
}

/* Copies bits unchanged, also those of NaNs. Without non-temporal stores the C library's copy is
 * the fastest. With several destinations the copy goes by tiles, so that the source is read from
 * memory once. */
static void copy(const struct ft_host_isa *isa, const struct ft_reduce *r)
{
    size_t len_bytes = r->count * ft_type_size(r->type),
           tile = r->ndst > 1 ? TILE_BYTES : len_bytes;
    if (isa->streams && (r->streaming || r->ndst > 1)) {
        struct ft_reduce bytes = *r;
        bytes.type = FT_UINT8;
        bytes.count = len_bytes;
        isa->kernel[FT_UINT8][FT_SUM](&bytes);
        return;
    }
    for (size_t at = 0; at < len_bytes; at += tile)
        for (int d = 0; d < r->ndst; d++)
            if (r->dst[d] != r->src[0])
                memcpy((char *)r->dst[d] + at, (const char *)r->src[0] + at,
                       ft_min(tile, len_bytes - at));
}

void ft_host_reduce(const struct ft_host_isa *isa, const struct ft_reduce *r)
{
    assert(r->nsrc >= 1 && r->nsrc <= FT_REDUCE_SRCS && r->ndst >= 1 && r->ndst <= FT_REDUCE_DSTS);
    assert(r->type < FT_TYPES && r->op.red < FT_HOST_OPS && (!r->scaled || r->op.scaled));
    bool divide = r->divide && r->op.divisor > 1;
    if (!r->count)
        return;
    if (r->nsrc == 1 && !r->scaled && !divide) {
        copy(isa, r);
    } else if (!ft_type_is_float(r->type)) {
        if (divide)
            reduce_tiles(isa, r);
        else
            isa->kernel[r->type][r->op.red](r);
    } else {
        uint64_t env = ft_fpenv_enter();
        isa->kernel[r->type][r->op.red](r);
        ft_fpenv_leave(env);
    }
}

static int host_reduce(struct ft_device *device, const struct ft_reduce *r,
                       struct ft_device_req *req)
{
    ft_host_reduce(FT_CONTAINER(device, struct host_device, base)->isa, r);
    req->status = FT_OK;
    return FT_OK;
}

static int host_poll(struct ft_device *device)
{
    (void)device;
    return 0;
}

const struct ft_device_ops ft_device_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .owns = host_owns,
    .reduce = host_reduce,
    .poll = host_poll,
};
