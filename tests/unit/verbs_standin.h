// A stand-in for libibverbs: one device with one port, whose queues do nothing by themselves. A
// test says what completes, what fails to be made, and which events come.
#ifndef FT_TESTS_VERBS_STANDIN_H
#define FT_TESTS_VERBS_STANDIN_H

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

extern "C" {
#include "transport/verbs/verbs.h"
}

namespace standin
{

// Queue pairs and memory are also ended by a thread of the fabric.
struct Count {
    Count() = default;
    Count(const Count &other) : n(other.n.load())
    {
    }
    Count &operator=(const Count &other)
    {
        n = other.n.load();
        return *this;
    }
    operator int() const
    {
        return n;
    }
    std::atomic<int> n{0};
};
inline std::mutex lock;       // of completions
inline std::mutex destroying; // a test that holds it holds up the destruction of queue pairs

struct State {
    std::deque<ibv_wc> completions; // what poll_cq gives
    bool destroy_cleans = false;    // a queue pair that is destroyed takes its completions along
    std::deque<ibv_send_wr> sends;  // what was posted
    std::deque<uint64_t> receives;  // their numbers
    std::deque<ibv_async_event> events;
    ibv_port_state port = IBV_PORT_ACTIVE;
    const char *fails = ""; // the call that fails
    int error = EINVAL;     // with this
    Count open;             // objects that exist
    uint32_t numbers = 100;
    uint8_t last_octet = 1; // of the address
    // A link-local address before it: alone, beside it, or removed.
    enum { None, Alone, Beside, Removed } link_local = None;
    ibv_qp_attr modified = {};
};
inline State state;
inline ibv_device device;
inline ibv_device *list[2] = {&device, nullptr};
inline ibv_context context;

template <class T> T *make(const char *call)
{
    if (strcmp(state.fails, call) == 0) {
        errno = state.error;
        return nullptr;
    }
    state.open.n++;
    return new T{};
}
template <class T> int drop(T *object)
{
    state.open.n--;
    delete object;
    return 0;
}

inline int poll_cq(ibv_cq *, int most, ibv_wc *out)
{
    std::lock_guard<std::mutex> held(lock);
    int n = 0;
    for (; n < most && !state.completions.empty(); n++) {
        out[n] = state.completions.front();
        state.completions.pop_front();
    }
    return n;
}
inline int post_send(ibv_qp *, ibv_send_wr *wr, ibv_send_wr **)
{
    state.sends.push_back(*wr);
    return 0;
}
inline int post_recv(ibv_qp *, ibv_recv_wr *wr, ibv_recv_wr **)
{
    for (; wr; wr = wr->next)
        state.receives.push_back(wr->wr_id);
    return 0;
}

inline ibv_context *open_device(ibv_device *)
{
    if (strcmp(state.fails, "open_device") == 0)
        return nullptr;
    state.open.n++;
    context = {};
    context.ops.poll_cq = poll_cq;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.req_notify_cq = [](ibv_cq *, int) { return 0; };
    context.async_fd = eventfd(0, 0);
    return &context;
}
inline int close_device(ibv_context *c)
{
    state.open.n--;
    return close(c->async_fd);
}
inline int query_port(ibv_context *, uint8_t, ibv_port_attr *attr)
{
    attr->state = state.port;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    attr->active_mtu = IBV_MTU_1024;
    attr->gid_tbl_len = 4;
    return 0;
}
inline int query_gid(ibv_context *, uint32_t port, uint32_t index, ibv_gid_entry *entry, uint32_t,
                     size_t)
{
    const bool two = state.link_local == State::Beside || state.link_local == State::Removed;
    if (index > (two ? 2 : 1) || (index == 1 && state.link_local == State::Removed))
        return ENODATA;
    *entry = {};
    entry->gid_index = index;
    entry->port_num = port;
    entry->gid_type = index ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
    memcpy(entry->gid.raw + 10, "\xff\xff\xc0\x00\x02", 5);
    if (index == 1 && state.link_local != State::None)
        memcpy(entry->gid.raw + 12, "\xa9\xfe\x00", 3);
    entry->gid.raw[15] = state.last_octet;
    return 0;
}
inline ibv_comp_channel *create_comp_channel(ibv_context *)
{
    auto *channel = make<ibv_comp_channel>("create_comp_channel");
    if (channel)
        channel->fd = eventfd(0, 0);
    return channel;
}
inline int destroy_comp_channel(ibv_comp_channel *channel)
{
    close(channel->fd);
    return drop(channel);
}
inline ibv_cq *create_cq(ibv_context *c, int, void *user, ibv_comp_channel *, int)
{
    auto *cq = make<ibv_cq>("create_cq");
    if (cq) {
        cq->context = c;
        cq->cq_context = user;
    }
    return cq;
}
inline ibv_qp *create_qp(ibv_pd *, ibv_qp_init_attr *attr)
{
    auto *qp = make<ibv_qp>("create_qp");
    if (qp) {
        qp->context = &context;
        qp->qp_context = attr->qp_context;
        qp->qp_num = state.numbers++;
    }
    return qp;
}
inline int destroy_qp(ibv_qp *qp)
{
    std::lock_guard<std::mutex> waits(destroying);
    std::lock_guard<std::mutex> held(lock);
    if (state.destroy_cleans)
        state.completions.clear();
    return drop(qp);
}
inline int modify_qp(ibv_qp *, ibv_qp_attr *attr, int)
{
    if (attr->qp_state == IBV_QPS_RTR)
        state.modified = *attr;
    return strcmp(state.fails, "modify_qp") == 0 ? state.error : 0;
}
inline int query_qp(ibv_qp *, ibv_qp_attr *attr, int, ibv_qp_init_attr *)
{
    attr->ah_attr = state.modified.ah_attr;
    return 0;
}
inline int get_async_event(ibv_context *, ibv_async_event *event)
{
    if (state.events.empty())
        return -1;
    *event = state.events.front();
    state.events.pop_front();
    return 0;
}

inline const verbs_lib *library()
{
    static verbs_lib lib = {};
    lib.get_device_list = [](int *n) {
        *n = 1;
        return list;
    };
    lib.free_device_list = [](ibv_device **) {};
    lib.get_device_name = [](ibv_device *) { return "card0"; };
    lib.open_device = open_device;
    lib.close_device = close_device;
    lib.query_device = [](ibv_context *, ibv_device_attr *attr) {
        attr->phys_port_cnt = 1;
        attr->max_qp_wr = 1024;
        attr->max_cqe = 1 << 20;
        return 0;
    };
    lib.query_port = query_port;
    lib.query_gid_ex = query_gid;
    lib.alloc_pd = [](ibv_context *) { return make<ibv_pd>("alloc_pd"); };
    lib.dealloc_pd = drop<ibv_pd>;
    lib.reg_mr = [](ibv_pd *, void *, size_t, int) { return make<ibv_mr>("reg_mr"); };
    lib.dereg_mr = drop<ibv_mr>;
    lib.create_comp_channel = create_comp_channel;
    lib.destroy_comp_channel = destroy_comp_channel;
    lib.create_cq = create_cq;
    lib.destroy_cq = drop<ibv_cq>;
    lib.get_cq_event = [](ibv_comp_channel *, ibv_cq **, void **) { return -1; };
    lib.ack_cq_events = [](ibv_cq *, unsigned) {};
    lib.create_qp = create_qp;
    lib.modify_qp = modify_qp;
    lib.query_qp = query_qp;
    lib.destroy_qp = destroy_qp;
    lib.get_async_event = get_async_event;
    lib.ack_async_event = [](ibv_async_event *) {};
    return &lib;
}

} // namespace standin

#endif
