// What the tests of the fabric verbs share, in the machine of `rig`: two fabrics in one process,
// each with a port at one end of both cables, ways between them, and memory that the other side
// writes.
#ifndef FT_TESTS_RDMA_FABRIC_FIXTURE_H
#define FT_TESTS_RDMA_FABRIC_FIXTURE_H

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "transport/verbs/verbs.h"
}

[[maybe_unused]] static uint64_t now_ns()
{
    return ft_now_ns(ft_env_real());
}

struct Variable {
    const char *name, *value;
};

// Sets variables, and takes them back at its end.
class Variables
{
  public:
    explicit Variables(const std::vector<Variable> &list) : variables(list)
    {
        for (auto &v : variables)
            setenv(v.name, v.value, 1);
        ft_params_reload();
    }
    ~Variables()
    {
        for (auto &v : variables)
            unsetenv(v.name);
        ft_params_reload();
    }

  private:
    std::vector<Variable> variables;
};

struct Seen {
    int what;
    ft_fabric_way *way;
    uint32_t immediate;
    unsigned count, port;
    bool up;
    int status;
    std::string text;
};

// A fabric with a region that peers write into, and one of its own.
class Side
{
  public:
    static const size_t bytes = 1 << 20;
    explicit Side(const char *hca, std::vector<Variable> more = {})
    {
        more.push_back({"FTCCL_IB_HCA", hca});
        Variables set(more);
        ft_fabric_config config = {ft_env_real(), -1};
        int rc = verbs_fabric_ops.open(&config, &f);
        EXPECT_EQ(rc, FT_OK) << ft_fail_text();
        if (rc != FT_OK)
            abort();
        inside.assign(bytes, 0);
        own.assign(bytes, 0);
        EXPECT_EQ(f->ops->reg(f, inside.data(), bytes, FT_FABRIC_REMOTE, &into), FT_OK)
            << ft_fail_text();
        EXPECT_EQ(f->ops->reg(f, own.data(), bytes, FT_FABRIC_LOCAL, &source), FT_OK)
            << ft_fail_text();
    }
    ~Side()
    {
        for (auto *way : ways)
            if (way)
                f->ops->way_close(way);
        if (into)
            f->ops->unreg(into, false);
        f->ops->unreg(source, false);
        f->ops->close(f);
    }
    Side(const Side &) = delete;
    void open(unsigned index)
    {
        if (ways.size() <= index)
            ways.resize(index + 1);
        ASSERT_EQ(f->ops->way_open(f, index, into, this, &ways[index]), FT_OK) << ft_fail_text();
    }
    int connect(unsigned index, Side &other)
    {
        unsigned char info[FT_FABRIC_INFO_BYTES];
        size_t len = f->ops->way_info(other.ways[index], info);
        return f->ops->way_connect(ways[index], info, len);
    }
    int write(unsigned way, size_t from, size_t len, size_t to, uint32_t immediate,
              bool asked = false, bool inlined = false)
    {
        ft_fabric_write w = {};
        w.piece[0] = {source, from, len};
        w.npieces = 1;
        w.to = to;
        w.immediate = immediate;
        w.asked = asked;
        w.inlined = inlined;
        return f->ops->write(ways[way], &w);
    }
    bool poll()
    {
        ft_fabric_event e[8];
        bool busy = false;
        int n = f->ops->poll(f, e, 8, &busy);
        for (int i = 0; i < n; i++)
            events.push_back({(int)e[i].what, e[i].way, e[i].immediate, e[i].count, e[i].port,
                              e[i].up, e[i].status,
                              e[i].what == ft_fabric_event::FT_FABRIC_FAILED ? e[i].text : ""});
        return n > 0;
    }
    unsigned count(int what, const ft_fabric_way *way = nullptr) const
    {
        unsigned n = 0;
        for (auto &e : events)
            n += e.what == what && (!way || e.way == way);
        return n;
    }
    unsigned written(const ft_fabric_way *way) const
    {
        unsigned n = 0;
        for (auto &e : events)
            n += e.what == ft_fabric_event::FT_FABRIC_WRITTEN && e.way == way ? e.count : 0;
        return n;
    }
    std::string describe(unsigned way) const
    {
        char text[FT_FABRIC_TEXT_BYTES];
        f->ops->way_describe(ways[way], text);
        return text;
    }

    ft_fabric *f = nullptr;
    ft_fabric_region *into = nullptr, *source = nullptr;
    std::vector<unsigned char> inside, own;
    std::vector<ft_fabric_way *> ways;
    std::vector<Seen> events;
};

// Polls both sides until the condition holds. False: the time passed.
[[maybe_unused]] static bool until(std::vector<Side *> sides, const std::function<bool()> &done,
                                   int seconds = 20)
{
    const uint64_t end = now_ns() + (uint64_t)seconds * 1000000000u;
    while (!done()) {
        for (Side *s : sides)
            s->poll();
        if (now_ns() > end)
            return done();
    }
    return true;
}

class VerbsFabric : public testing::Test
{
  protected:
    void open(const std::vector<Variable> &more = {}, const char *hca_a = "=rxe0,rxe2",
              const char *hca_b = "=rxe1,rxe3")
    {
        a = std::make_unique<Side>(hca_a, more);
        b = std::make_unique<Side>(hca_b, more);
        ASSERT_EQ(a->f->ways, b->f->ways);
    }
    void join(unsigned way)
    {
        a->open(way);
        b->open(way);
        ASSERT_EQ(b->connect(way, *a), FT_OK) << ft_fail_text();
        ASSERT_EQ(a->connect(way, *b), FT_OK) << ft_fail_text();
    }
    bool both(const std::function<bool()> &done, int seconds = 20)
    {
        return until({a.get(), b.get()}, done, seconds);
    }
    std::unique_ptr<Side> a, b;
};

#endif
