/*
 * What libfabric does without FTCCL: one process writes into the memory of another with remote
 * completion data, on this host. Prints the rate of 128 KiB writes with 8 in flight, and half of a
 * round trip of 8 bytes. Usage: ofi_loop PROVIDER [PART]; PART 0.1 does a tenth.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 131072u
#define FLIGHT 8u
#define BATCHES 40
#define CHECK(call)                                                     \
    do {                                                                \
        long rc_ = (call);                                              \
        if (rc_) {                                                      \
            fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-rc_)); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

struct card {
    uint64_t key, at;
    size_t name_bytes;
    char name[256];
};

static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_mr *mr;
static unsigned char *memory;
static struct card peer;
static fi_addr_t peer_addr;
static unsigned long written, arrived;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void turn(void)
{
    struct fi_cq_data_entry e[16];
    const ssize_t n = fi_cq_read(cq, e, 16);
    if (n < 0 && n != -FI_EAGAIN) {
        fprintf(stderr, "fi_cq_read: %s\n", fi_strerror((int)-n));
        exit(1);
    }
    for (ssize_t i = 0; i < n; i++)
        ++*(e[i].op_context ? &written : &arrived);
}

static void put(size_t slot, size_t len_bytes)
{
    static struct fi_context2 context;
    ssize_t rc;
    while ((rc = fi_writedata(ep, memory + slot * CHUNK, len_bytes, fi_mr_desc(mr), slot, peer_addr,
                              peer.at + slot * CHUNK, peer.key, &context)) == -FI_EAGAIN)
        turn();
    CHECK(rc);
}

static void wait_for(const unsigned long *count, unsigned long least)
{
    while (*count < least)
        turn();
}

static struct fi_info *find(const char *provider)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    CHECK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
    return info;
}

static struct fid_av *open_endpoint(struct fi_info *info, struct fid_domain *domain)
{
    struct fi_cq_attr cq_attr = {.size = 1024, .format = FI_CQ_FORMAT_DATA};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 1};
    struct fid_av *av;
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep));
    return av;
}

static void open_all(const char *provider, int wire)
{
    struct fi_info *info = find(provider);
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    const size_t len = (size_t)FLIGHT * CHUNK;
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    struct fid_av *av = open_endpoint(info, domain);
    memory = calloc(1, len);
    CHECK(fi_mr_reg(domain, memory, len, FI_WRITE | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
    struct card mine = {.key = fi_mr_key(mr), .name_bytes = sizeof mine.name};
    mine.at = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
    CHECK(fi_getname(&ep->fid, mine.name, &mine.name_bytes));
    if (write(wire, &mine, sizeof mine) != sizeof mine ||
        read(wire, &peer, sizeof peer) != sizeof peer ||
        fi_av_insert(av, peer.name, 1, &peer_addr, 0, NULL) != 1)
        exit(1);
}

static int compare(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static double latency_us(bool first, int rounds)
{
    unsigned long got = arrived;
    const double start = now_us();
    for (int i = 0; i < rounds; i++) {
        if (first)
            put(0, 8);
        wait_for(&arrived, ++got);
        if (!first)
            put(0, 8);
    }
    return (now_us() - start) / rounds / 2;
}

static double rate(bool first, unsigned writes)
{
    const unsigned long got = arrived, done = written;
    const double start = now_us();
    for (unsigned i = 0; first && i < writes; i++) {
        if (i >= FLIGHT)
            wait_for(&written, done + i - FLIGHT + 1);
        put(i % FLIGHT, CHUNK);
    }
    if (!first) {
        wait_for(&arrived, got + writes);
        put(0, 8);
    } else {
        wait_for(&arrived, got + 1);
    }
    return (double)writes * CHUNK / (now_us() - start) / 1e3;
}

int main(int argc, char **argv)
{
    int wire[2], status = 0;
    const double part = argc > 2 ? atof(argv[2]) : 1;
    double v[BATCHES];
    if (argc < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, wire))
        return 2;
    const pid_t child = fork();
    const bool first = child != 0;
    open_all(argv[1], wire[first]);
    for (int i = 0; i < BATCHES; i++)
        v[i] = latency_us(first, (int)(2000 * part) + 1);
    if (first)
        printf("%s: 8 B one way: median %.3f us\n", argv[1], median(v, BATCHES));
    for (int i = 0; i < BATCHES; i++)
        v[i] = rate(first, (unsigned)(256 * part) + FLIGHT);
    if (first)
        printf("%s: 128 KiB: median %.2f GB/s\n", argv[1], median(v, BATCHES));
    if (!first)
        _exit(0);
    wait(&status);
    return status != 0;
}
