/*
 * A network with another name, for tests. It runs over TCP, but declares RDMA, its own costs, and
 * that registered memory is faster. It counts registrations and messages from registered memory,
 * refuses registrations when a test says so, and makes links that end before they are up.
 */
#ifndef FT_TESTS_FABRIC_H
#define FT_TESTS_FABRIC_H

#include <atomic>
#include <map>
#include <mutex>
#include <set>

extern "C" {
#include "transport/transport.h"
}

namespace fabric
{

inline const ft_network_costs costs = {2500, 0.08, 1100, 0.09, 300};

inline std::mutex lock;
inline std::map<int *, std::pair<const char *, size_t>> ranges; /* the key is what unreg gets */
inline std::atomic<int> regs{0}, unregs{0}, from_registered{0}, from_others{0};
inline std::atomic<bool> refuses{false};
/* Not FT_OK: links end for this reason before they are up. */
inline std::atomic<int> unmade{FT_OK};
inline std::atomic<int> ended{0};  /* links that did */
inline std::set<ft_link *> ending; /* under lock */
/* Called in reg, before the memory is recorded. */
inline void (*in_reg)() = nullptr;

inline void reset()
{
    regs = unregs = from_registered = from_others = 0;
    refuses = false;
    unmade = FT_OK;
    ended = 0;
    in_reg = nullptr;
}

inline int reg(ft_transport *, void *addr, size_t len_bytes, void **out)
{
    if (in_reg)
        in_reg();
    if (refuses)
        return ft_fail(FT_NOMEM, "this fabric has no room for %zu bytes", len_bytes);
    std::lock_guard<std::mutex> held(lock);
    int *id = new int(regs++);
    ranges[id] = {static_cast<const char *>(addr), len_bytes};
    *out = id;
    return FT_OK;
}

inline void unreg(ft_transport *, void *registered)
{
    std::lock_guard<std::mutex> held(lock);
    int *id = static_cast<int *>(registered);
    if (ranges.erase(id) != 1)
        abort(); /* it was not registered, or was unregistered before */
    delete id;
    unregs++;
}

inline bool knows(const void *data, size_t len_bytes)
{
    std::lock_guard<std::mutex> held(lock);
    for (auto &range : ranges) {
        size_t at = (size_t)((uintptr_t)data - (uintptr_t)range.second.first);
        if (at <= range.second.second && len_bytes <= range.second.second - at)
            return true;
    }
    return false;
}

inline int send(ft_link *link, const ft_header *header, const void *data, ft_send *req)
{
    {
        std::lock_guard<std::mutex> held(lock);
        if (ending.count(link))
            return link->state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    }
    int rc = ft_transport_tcp.send(link, header, data, req);
    if (rc == FT_OK && header->len > 0)
        (knows(data, header->len) ? from_registered : from_others)++;
    return rc;
}

inline int open(const ft_transport_config *config, ft_transport **out);

inline int connect(ft_transport *transport, uint64_t peer, const void *address, size_t len_bytes,
                   ft_link **out)
{
    if (unmade == FT_OK)
        return ft_transport_tcp.connect(transport, peer, address, len_bytes, out);
    ft_link *link = new ft_link{};
    link->ops = transport->ops;
    link->transport = transport;
    link->peer = peer;
    link->sender = true;
    link->state = FT_LINK_CONNECTING;
    std::lock_guard<std::mutex> held(lock);
    ending.insert(link);
    *out = link;
    return FT_OK;
}

inline int poll(ft_transport *transport, ft_event *events, int max, bool *busy)
{
    int n = ft_transport_tcp.poll(transport, events, max, busy);
    std::lock_guard<std::mutex> held(lock);
    for (ft_link *link : ending)
        if (link->transport == transport && link->state == FT_LINK_CONNECTING && n < max) {
            link->state = FT_LINK_DOWN;
            link->reason = unmade;
            events[n].what = ft_event::FT_EVENT_DOWN;
            events[n++].link = link;
            ended++;
        }
    return n;
}

inline void disconnect(ft_link *link)
{
    {
        std::lock_guard<std::mutex> held(lock);
        if (ending.erase(link) == 1) {
            delete link;
            return;
        }
    }
    ft_transport_tcp.disconnect(link);
}

inline ft_transport_ops make_ops()
{
    ft_transport_ops ops = ft_transport_tcp;
    ops.name = "fabric";
    ops.nccl_name = "Fabric";
    ops.caps = {FT_SCOPE_NETWORK, true, false, true, &costs};
    ops.open = open;
    ops.connect = connect;
    ops.disconnect = disconnect;
    ops.poll = poll;
    ops.send = send;
    ops.reg = reg;
    ops.unreg = unreg;
    return ops;
}
inline const ft_transport_ops ops = make_ops();

inline int open(const ft_transport_config *config, ft_transport **out)
{
    int rc = ft_transport_tcp.open(config, out);
    if (rc == FT_OK)
        (*out)->ops = &ops; /* also used by its links */
    return rc;
}

} // namespace fabric

#endif
