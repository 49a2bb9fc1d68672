// Property P5: a writer that was stopped is excluded; the memory of its link is freed, and filled
// with a pattern. It goes on, and not one byte changes. Method: over every backend, the writer is a
// process that is stopped in the middle of its writes. What the link's end unmapped is told from
// /proc/self/maps, and mapped again at the same addresses. Another link goes on meanwhile, so that
// whatever serves links is busy.
#include <csignal>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/common/sanitizer.h"
#include "tests/conform/transport.h"

namespace
{

constexpr size_t kLen = 60000;
constexpr unsigned char kPattern = 0x5a;

using Ranges = std::map<uintptr_t, uintptr_t>; // from begin to end, which do not touch

// All memory of this process that can be written.
Ranges writable()
{
    std::ifstream maps("/proc/self/maps");
    Ranges ranges;
    for (std::string line; std::getline(maps, line);) {
        uintptr_t begin, end;
        char dash;
        std::string rights;
        std::istringstream(line) >> std::hex >> begin >> dash >> end >> rights;
        if (rights.compare(0, 2, "rw") == 0)
            ranges[begin] = end;
    }
    return ranges;
}

// What is in the first, and in none of the second.
Ranges difference(const Ranges &all, const Ranges &without)
{
    Ranges rest;
    for (std::pair<uintptr_t, uintptr_t> range : all) {
        for (auto &hole : without) {
            if (hole.second <= range.first || hole.first >= range.second)
                continue;
            if (hole.first > range.first)
                rest[range.first] = hole.first;
            range = {hole.second, std::max(hole.second, range.second)};
        }
        if (range.first < range.second)
            rest[range.first] = range.second;
    }
    return rest;
}

size_t bytes_of(const Ranges &ranges)
{
    size_t sum = 0;
    for (auto &range : ranges)
        sum += range.second - range.first;
    return sum;
}

// The sum of all bytes that are not the pattern.
size_t changed_in(const Ranges &ranges)
{
    size_t changed = 0;
    for (auto &range : ranges)
        for (uintptr_t at = range.first; at < range.second; at++)
            changed += *reinterpret_cast<unsigned char *>(at) != kPattern;
    return changed;
}

void fill(const Ranges &ranges)
{
    for (auto &range : ranges) {
        void *at = reinterpret_cast<void *>(range.first);
        ASSERT_EQ(mmap(at, range.second - range.first, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                  at);
        memset(at, kPattern, range.second - range.first);
    }
}

// A writer in a process of its own.
struct Writer {
    Engine engine;
    ft_link *link = nullptr;
    uint32_t seq = 1;
    std::string data = payload(1, kLen);
    explicit Writer(const Backend &backend) : engine(backend, 0xc)
    {
    }
    bool connect(const std::string &address)
    {
        link = engine.t && engine.ops->bind(engine.t, 1) == FT_OK ? engine.connect(0xb, address)
                                                                  : nullptr;
        return link && turn({&engine}, [&] { return link->state == FT_LINK_UP; });
    }
    int send(ft_send *req)
    {
        ft_header h = header_of(1, 0, seq, kLen);
        *req = {};
        req->status = FT_AGAIN;
        const int rc = link->ops->send(link, &h, data.data(), req);
        seq += rc == FT_OK;
        return rc;
    }
};

// Sends five messages to the engine at this address; the first three are read. Stops. Then goes on
// to write without a look at what has happened, and at last looks.
int write_on(const Backend &backend, const std::string &address, int in)
{
    Writer w(backend);
    if (!w.connect(address))
        return 1;
    ft_send req[16];
    for (int i = 0; i < 3; i++)
        if (!turn({&w.engine}, [&] { return w.send(&req[i]) == FT_OK; }) ||
            !turn({&w.engine}, [&] { return req[i].status == FT_OK; }))
            return 2;
    pollfd read{in, POLLIN, 0};
    turn({&w.engine}, [&] { return poll(&read, 1, 0) > 0; });
    for (int i = 3; i < 5; i++)
        if (w.send(&req[i]) != FT_OK)
            return 3;
    raise(SIGSTOP);
    for (int i = 5; i < 16 && w.send(&req[i]) == FT_OK; i++)
        continue;
    return turn(
               {&w.engine}, [&] { return w.link->state == FT_LINK_DOWN; }, 30000)
               ? 0
               : 4;
}

class TransportFence : public TransportTest
{
};
INSTANTIATE_TEST_SUITE_P(All, TransportFence, testing::ValuesIn(all_backends()), backend_name);

TEST_P(TransportFence, AnExcludedWriterChangesNothing)
{
    if (!GetParam().processes)
        GTEST_SKIP() << "works only inside one process";
    if (is_sanitized("thread"))
        GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts a thread";
    open();
    ASSERT_TRUE(link());
    const std::string to = b->address();
    Child child([&](int in, int) { return write_on(GetParam(), to, in); });
    ASSERT_TRUE(turn({b.get()}, [&] { return b->accepted(1); }));
    ft_link *const written = b->accepted(1);
    ft_msg msg;
    for (int i = 0; i < 3; i++) {
        ASSERT_TRUE(take(written, 1, 0, &msg));
        written->ops->release(written, &msg);
    }
    child.write("read");
    ASSERT_TRUE(child.is_stopped());
    const Ranges before = writable();
    written->cut = true;
    b->disconnect(written);
    Ranges freed;
    uint64_t last = now_ms(); // when more was freed
    EXPECT_TRUE(turn({b.get()},
                     [&] {
                         Ranges now = difference(before, writable());
                         last = now == freed ? last : now_ms();
                         freed = now;
                         return bytes_of(freed) >= 256 << 10 && now_ms() - last > 100;
                     }))
        << "only " << bytes_of(freed) << " bytes were freed";
    fill(freed);
    printf("%zu bytes were freed\n", bytes_of(freed));
    child.go_on();
    const uint64_t start = now_ms();
    for (uint32_t seq = 1; now_ms() - start < 300 && !HasFailure(); seq++) {
        EXPECT_EQ(send(ab, 1, 0, seq, kLen), FT_OK);
        EXPECT_TRUE(expect(1, 0, seq, kLen));
    }
    EXPECT_EQ(changed_in(freed), 0u);
    EXPECT_EQ(child.wait(), 0) << "the writer does not learn it";
    EXPECT_EQ(changed_in(freed), 0u);
    for (auto &range : freed)
        munmap(reinterpret_cast<void *>(range.first), range.second - range.first);
}

} // namespace
