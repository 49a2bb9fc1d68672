// What the bootstrap tests share: ranks as threads, each with its own endpoint, and the result of
// each.
#ifndef FT_BOOTSTRAP_HELPERS_H
#define FT_BOOTSTRAP_HELPERS_H

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>
extern "C" {
#include "membership/bootstrap.h"
}

using Id = std::array<unsigned char, FT_UNIQUE_ID_BYTES>;

struct Outcome {
    int status = 1;
    std::string text;
    std::shared_ptr<ft_table> table;
    double seconds = 0;
};

inline double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

inline Id make_id()
{
    Id id{};
    int status = ft_unique_id_make(id.data());
    EXPECT_EQ(FT_OK, status) << ft_fail_text();
    return id;
}

inline ft_endpoint make_endpoint(int rank)
{
    ft_endpoint endpoint{};
    endpoint.engine = 1000 + (uint64_t)rank;
    endpoint.host = 7;
    endpoint.config = 42;
    snprintf(endpoint.config_text, sizeof endpoint.config_text, "chunk=131072 chunks=4");
    endpoint.address_bytes = (uint32_t)(rank * 37 % 1024);
    memset(endpoint.address, rank + 1, endpoint.address_bytes);
    return endpoint;
}

struct Call {
    std::vector<Id> ids;
    int nranks = 1, rank = 0;
    ft_endpoint endpoint{};
    double timeout_s = 20;
    const atomic_int *cancel = nullptr;
    bool grow = false;
};

inline Outcome join(const Call &call)
{
    Outcome out;
    ft_table *table = nullptr;
    ft_join arg{};
    arg.ids = (const unsigned char(*)[FT_UNIQUE_ID_BYTES])call.ids.data();
    arg.nids = (int)call.ids.size();
    arg.nranks = call.nranks;
    arg.rank = call.rank;
    arg.endpoint = &call.endpoint;
    arg.timeout_ns = (uint64_t)(call.timeout_s * 1e9);
    arg.cancel = call.cancel;
    arg.grow = call.grow;
    double begin = now_s();
    out.status = ft_bootstrap_join(&arg, &table);
    out.seconds = now_s() - begin;
    out.text = out.status ? ft_fail_text() : "";
    if (out.status == FT_OK)
        out.table.reset(table, free);
    return out;
}

inline std::vector<Outcome> join_calls(const std::vector<Call> &calls)
{
    std::vector<Outcome> out(calls.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < calls.size(); i++)
        threads.emplace_back([&, i] { out[i] = join(calls[i]); });
    for (auto &t : threads)
        t.join();
    return out;
}

inline std::vector<Call> calls_for(const std::vector<Id> &ids, int nranks, double timeout_s = 20)
{
    std::vector<Call> calls((size_t)nranks);
    for (int r = 0; r < nranks; r++) {
        Call &c = calls[(size_t)r];
        c.ids = ids;
        c.nranks = nranks;
        c.rank = r;
        c.endpoint = make_endpoint(r);
        c.timeout_s = timeout_s;
    }
    return calls;
}

inline void expect_tables(const std::vector<Outcome> &all)
{
    for (size_t r = 0; r < all.size(); r++) {
        ASSERT_EQ(FT_OK, all[r].status) << "rank " << r << ": " << all[r].text;
        const ft_table *t = all[r].table.get(), *first = all[0].table.get();
        ASSERT_EQ((int)all.size(), t->nranks);
        EXPECT_EQ(first->job, t->job);
        EXPECT_EQ(0, memcmp(first->key, t->key, sizeof t->key));
        for (int i = 0; i < t->nranks; i++) {
            ft_endpoint want = make_endpoint(i);
            EXPECT_EQ(0, memcmp(&want, &t->endpoint[i], sizeof want))
                << "rank " << r << " has another endpoint of rank " << i;
        }
    }
}

inline void expect_all(const std::vector<Outcome> &all, int status, const std::string &part)
{
    for (size_t r = 0; r < all.size(); r++) {
        EXPECT_EQ(status, all[r].status) << "call " << r << ": " << all[r].text;
        EXPECT_NE(std::string::npos, all[r].text.find(part))
            << "call " << r << ": " << all[r].text << " lacks " << part;
    }
}

// Waits for something that another thread is about to do. True: it happened.
inline bool eventually(const std::function<bool()> &what, double limit_s = 10)
{
    for (double end = now_s() + limit_s; now_s() < end; std::this_thread::yield())
        if (what())
            return true;
    return what();
}

inline ft_id decoded(const Id &id)
{
    ft_id out{};
    EXPECT_EQ(FT_OK, ft_id_decode(&out, id.data()));
    return out;
}

// A connection to an id's service that says only what the test tells it to say.
inline int raw_connect(const Id &id)
{
    ft_id to = decoded(id);
    ft_wait wait{ft_env_real(), ft_now_ns(ft_env_real()) + 5000000000u, nullptr};
    int fd = -1;
    EXPECT_EQ(FT_OK, ft_wait_connect(&wait, &to.address[0], &fd)) << ft_fail_text();
    return fd;
}

#endif
