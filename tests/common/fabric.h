/*
 * A network with another name, for tests. It runs over TCP, but declares RDMA, its own costs, and
 * that registered memory is faster. It counts registrations and messages from registered memory,
 * and refuses registrations when a test says so.
 */
#ifndef FT_TESTS_FABRIC_H
#define FT_TESTS_FABRIC_H

#include <atomic>
#include <map>
#include <mutex>

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
/* Called in reg, before the memory is recorded. */
inline void (*in_reg)() = nullptr;

inline void reset()
{
    regs = unregs = from_registered = from_others = 0;
    refuses = false;
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
    int rc = ft_transport_tcp.send(link, header, data, req);
    if (rc == FT_OK && header->len > 0)
        (knows(data, header->len) ? from_registered : from_others)++;
    return rc;
}

inline int open(const ft_transport_config *config, ft_transport **out);

inline ft_transport_ops make_ops()
{
    ft_transport_ops ops = ft_transport_tcp;
    ops.name = "fabric";
    ops.nccl_name = "Fabric";
    ops.caps = {FT_SCOPE_NETWORK, true, false, true, &costs};
    ops.open = open;
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
