/*
 * What RDMA devices do without a library: two processes with some queue pairs between two devices,
 * through libibverbs alone. Prints the rate of a loop of 128 KiB WRITEs with as many in flight as a
 * link of FTCCL has slots, to be compared with a link.
 * Usage: rdma_loop DEVICE OTHER_DEVICE QUEUE_PAIRS WRITES
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 131072, SLOTS = 8, GID_INDEX = 1, QPS_MOST = 16 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp[QPS_MOST];
    unsigned char *memory;
    int qps;
};
struct address {
    uint32_t qpn[QPS_MOST], rkey;
    uint64_t at;
    union ibv_gid gid;
};

static void need(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct ibv_context *open_by_name(const char *name)
{
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(NULL);
    need(list != NULL, "list of devices");
    for (int i = 0; list[i] && !context; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    need(context != NULL, name);
    return context;
}

static void make_qps(struct end *e, struct address *own)
{
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .cap = {32, 1, 1, 1, 0}};
    for (int i = 0; i < e->qps; i++) {
        e->qp[i] = ibv_create_qp(e->pd, &init);
        need(e->qp[i] != NULL, "queue pair");
        own->qpn[i] = e->qp[i]->qp_num;
    }
}

static void open_end(struct end *e, const char *name, int qps, struct address *own)
{
    e->context = open_by_name(name);
    e->qps = qps;
    e->pd = ibv_alloc_pd(e->context);
    need(e->pd != NULL, "protection domain");
    e->cq = ibv_create_cq(e->context, 64 * QPS_MOST, NULL, NULL, 0);
    need(e->cq != NULL, "completion queue");
    e->memory = aligned_alloc(4096, SLOTS * BYTES);
    need(e->memory != NULL, "memory");
    memset(e->memory, 1, SLOTS * BYTES);
    e->mr = ibv_reg_mr(e->pd, e->memory, SLOTS * BYTES,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    need(e->mr != NULL, "memory region");
    make_qps(e, own);
    own->rkey = e->mr->rkey;
    own->at = (uintptr_t)e->memory;
    need(ibv_query_gid(e->context, 1, GID_INDEX, &own->gid) == 0, "GID");
}

static void connect_qp(struct ibv_qp *qp, const struct address *other, int i)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_4096,
                              .dest_qp_num = other->qpn[i],
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = 12};
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1};
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.grh.dgid = other->gid;
    rtr.ah_attr.grh.sgid_index = GID_INDEX;
    rtr.ah_attr.grh.hop_limit = 64;
    need(ibv_modify_qp(qp, &init,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "INIT");
    need(ibv_modify_qp(qp, &rtr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "RTR");
    need(ibv_modify_qp(qp, &rts,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "RTS");
}

static void write_slot(struct end *e, const struct address *to, long number)
{
    const int slot = (int)(number % SLOTS);
    struct ibv_sge sge = {(uintptr_t)e->memory + (size_t)slot * BYTES, BYTES, e->mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = to->at + (size_t)slot * BYTES;
    wr.wr.rdma.rkey = to->rkey;
    need(ibv_post_send(e->qp[number % e->qps], &wr, &bad) == 0, "post");
}

static void loop(struct end *e, const struct address *to, long writes)
{
    struct ibv_wc wc;
    long posted = 0, ended = 0;
    const double begin = now_s();
    while (ended < writes) {
        while (posted < writes && posted - ended < SLOTS)
            write_slot(e, to, posted++);
        const int n = ibv_poll_cq(e->cq, 1, &wc);
        need(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS), "completion");
        ended += n;
    }
    printf("%.3f MB/s\n", (double)writes * BYTES / (now_s() - begin) / 1e6);
}

/* Each process does the same; the parent writes. */
static void work(const char *device, int qps, long writes, const int fd[2])
{
    struct end e = {0};
    struct address own, other;
    char word;
    memset(&own, 0, sizeof own);
    open_end(&e, device, qps, &own);
    need(write(fd[1], &own, sizeof own) == sizeof own, "write");
    need(read(fd[0], &other, sizeof other) == sizeof other, "read");
    for (int i = 0; i < qps; i++)
        connect_qp(e.qp[i], &other, i);
    need(write(fd[1], "", 1) == 1 && read(fd[0], &word, 1) == 1, "meet");
    if (writes)
        loop(&e, &other, writes);
    need(write(fd[1], "", 1) == 1 && read(fd[0], &word, 1) == 1, "end");
}

int main(int argc, char **argv)
{
    int there[2], back[2], status = 1;
    if (argc != 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > QPS_MOST || atol(argv[4]) < 1) {
        fprintf(stderr, "usage: rdma_loop DEVICE OTHER_DEVICE QUEUE_PAIRS WRITES\n");
        return 2;
    }
    need(pipe(there) == 0 && pipe(back) == 0, "pipe");
    const pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        work(argv[2], atoi(argv[3]), 0, (int[]){there[0], back[1]});
        return 0;
    }
    work(argv[1], atoi(argv[3]), atol(argv[4]), (int[]){back[0], there[1]});
    waitpid(child, &status, 0);
    return status != 0;
}
