// Properties: what is encoded is decoded to the same; a message that is cut anywhere, or has more
// bytes, is FT_PROTOCOL; one with changed bytes is FT_PROTOCOL or decodes to what encodes to the
// same bytes, and nothing beyond its end is read. Method: messages of random contents from a
// printed seed, in buffers of their exact size. Replay: FT_SEED=<seed> managed_wire_test.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

extern "C" {
#include "membership/managed.h"
#include "base/wire.h"
}

namespace
{

std::mt19937_64 &dice()
{
    static std::mt19937_64 generator = [] {
        const char *given = getenv("FT_SEED");
        const uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device()();
        printf("replay: FT_SEED=%llu managed_wire_test\n", (unsigned long long)seed);
        return std::mt19937_64(seed);
    }();
    return generator;
}

uint64_t pick(uint64_t low, uint64_t high)
{
    return low + dice()() % (high - low + 1);
}

std::string endpoint(uint64_t engine)
{
    ft_endpoint e = {};
    e.engine = engine, e.host = dice()(), e.config = dice()();
    for (uint64_t i = pick(0, FT_ENDPOINT_TEXT_MAX); i > 0; i--)
        e.config_text[i - 1] = 'x';
    e.address_bytes = (uint32_t)pick(0, 60);
    unsigned char bytes[FT_ENDPOINT_WIRE_MAX];
    const size_t len = ft_endpoint_encode(bytes, &e);
    return std::string(reinterpret_cast<char *>(bytes), len);
}

std::string word(uint32_t value)
{
    unsigned char bytes[4], *at = bytes;
    put32(&at, value);
    return std::string(reinterpret_cast<char *>(bytes), 4);
}

const unsigned char *bytes_of(const std::string &s)
{
    return reinterpret_cast<const unsigned char *>(s.data());
}

// Each format: what encodes and decodes it. decode() gives back the same bytes, or nothing if they
// are none of it.
template <typename T, size_t (*Encode)(unsigned char *, const T *)>
std::string encode(const T &message)
{
    const size_t len = Encode(nullptr, &message);
    std::unique_ptr<unsigned char[]> exact(new unsigned char[len]);
    EXPECT_EQ(Encode(exact.get(), &message), len);
    return std::string(reinterpret_cast<char *>(exact.get()), len);
}

template <typename T, size_t (*Encode)(unsigned char *, const T *),
          int (*Decode)(const unsigned char *, size_t, T *)>
bool decode(const std::string &bytes, std::string *again)
{
    std::unique_ptr<unsigned char[]> exact(new unsigned char[bytes.size()]);
    memcpy(exact.get(), bytes.data(), bytes.size());
    T message;
    memset(&message, 0xee, sizeof(message));
    const int rc = Decode(exact.get(), bytes.size(), &message);
    EXPECT_TRUE(rc == FT_OK || rc == FT_PROTOCOL) << rc;
    if (rc == FT_OK)
        *again = encode<T, Encode>(message);
    return rc == FT_OK;
}

using Decoder = bool (*)(const std::string &, std::string *);

void check(const std::string &bytes, Decoder decoder)
{
    std::string again;
    ASSERT_TRUE(decoder(bytes, &again));
    EXPECT_EQ(again, bytes);
    for (size_t len = 0; len < bytes.size(); len++)
        EXPECT_FALSE(decoder(bytes.substr(0, len), &again)) << "cut to " << len;
    EXPECT_FALSE(decoder(bytes + '\0', &again)) << "one byte more";
    for (int i = 0; i < 2000; i++) {
        std::string other = bytes;
        for (uint64_t n = pick(1, 3); n > 0; n--)
            other[pick(0, other.size() - 1)] = (char)(pick(0, 1) ? pick(0, 3) : pick(0, 255));
        const bool is_one = decoder(other, &again);
        EXPECT_TRUE(!is_one || again.size() == other.size());
    }
}

const Decoder join_decoder =
    decode<ft_members_join, ft_members_join_encode, ft_members_join_decode>;
const Decoder ask_decoder = decode<ft_members_ask, ft_members_ask_encode, ft_members_ask_decode>;
const Decoder view_decoder =
    decode<ft_members_view, ft_members_view_encode, ft_members_view_decode>;

ft_role role()
{
    ft_role r = {};
    memset(r.group, 'g', pick(0, FT_NAME_BYTES - 1));
    memset(r.replica, 'r', pick(0, FT_NAME_BYTES - 1));
    r.local_rank = (uint32_t)dice()(), r.local_size = (uint32_t)dice()();
    return r;
}

TEST(Wire, Joins)
{
    for (int i = 0; i < 5; i++) {
        ft_members_join j = {};
        j.slot = (uint32_t)pick(0, FT_SLOTS_MOST - 1);
        j.role = role();
        j.engine = dice()() | 1, j.step = dice()();
        if (i > 0)
            j.held_term = dice()(), j.held_epoch = pick(1, FT_EPOCH_MOST);
        if (i > 1)
            j.held_nranks = (uint32_t)pick(1, 1000), j.held_rank = j.held_nranks - 1;
        j.min_members = (uint32_t)dice()(), j.window_ms = (uint32_t)dice()();
        j.suspect_ms = (uint32_t)dice()();
        const std::string e = endpoint(j.engine);
        j.endpoint = bytes_of(e), j.endpoint_bytes = e.size();
        const std::string bytes = encode<ft_members_join, ft_members_join_encode>(j);
        check(bytes, join_decoder);
        EXPECT_LT(bytes.size(), FT_MEMBERS_REQUEST_MOST);
    }
}

TEST(Wire, JoinsThatMakeNoSense)
{
    ft_members_join good = {};
    const std::string e = endpoint(7);
    good.role = role(), good.engine = 7;
    good.endpoint = bytes_of(e), good.endpoint_bytes = e.size();
    auto refused = [](const ft_members_join &j) {
        std::string again;
        return !join_decoder(encode<ft_members_join, ft_members_join_encode>(j), &again);
    };
    EXPECT_FALSE(refused(good));
    ft_members_join j = good;
    EXPECT_TRUE((j.slot = FT_SLOTS_MOST, refused(j)));
    j = good;
    EXPECT_TRUE((j.engine = 8, refused(j))) << "it is not the endpoint's";
    j = good;
    EXPECT_TRUE((j.held_epoch = 3, j.held_rank = 1, j.held_nranks = 1, refused(j)));
    EXPECT_TRUE((j.held_rank = 1, j.held_nranks = 0, refused(j)));
    EXPECT_TRUE((j.held_rank = 0, j.held_epoch = FT_EPOCH_MOST + 1, refused(j)));
    EXPECT_FALSE((j.held_epoch = FT_EPOCH_MOST, refused(j)));
    j = good;
    EXPECT_TRUE((j.held_nranks = 1, refused(j))) << "of no view";
}

TEST(Wire, Asks)
{
    for (uint32_t ndead : {0u, 1u, 5u, (uint32_t)FT_DEAD_MOST}) {
        ft_members_ask a = {};
        const std::string dead(ndead * 8, 'd');
        a.slot = (uint32_t)pick(0, FT_SLOTS_MOST - 1);
        a.step = dice()(), a.term = dice()(), a.epoch = dice()();
        a.failed = ndead > 1;
        a.dead = bytes_of(dead), a.ndead = ndead;
        const std::string bytes = encode<ft_members_ask, ft_members_ask_encode>(a);
        check(bytes, ask_decoder);
        EXPECT_LT(bytes.size(), FT_MEMBERS_REQUEST_MOST);
    }
}

TEST(Wire, Roles)
{
    for (int i = 0; i < 20; i++) {
        const ft_role r = role();
        std::string bytes(ft_members_role_encode(nullptr, &r), '\0');
        ft_members_role_encode(reinterpret_cast<unsigned char *>(&bytes[0]), &r);
        ft_role other;
        size_t used = 0;
        ASSERT_EQ(ft_members_role_decode(bytes_of(bytes + "more"), bytes.size() + 4, &other, &used),
                  FT_OK);
        EXPECT_EQ(used, bytes.size());
        EXPECT_EQ(memcmp(&other, &r, sizeof(r)), 0);
        for (size_t len = 0; len < bytes.size(); len++)
            EXPECT_EQ(ft_members_role_decode(bytes_of(bytes), len, &other, &used), FT_PROTOCOL);
        if (r.group[0]) {
            bytes[1] = '\0';
            EXPECT_EQ(ft_members_role_decode(bytes_of(bytes), bytes.size(), &other, &used),
                      FT_PROTOCOL)
                << "a name has a zero";
        }
    }
}

// A view: whole, or a change of another.
std::string view(bool whole)
{
    ft_members_view v = {};
    v.slot = (uint32_t)pick(0, FT_SLOTS_MOST - 1);
    v.term = dice()(), v.epoch = pick(1, UINT64_MAX), v.step = dice()();
    v.nranks = (uint32_t)pick(1, 8), v.rank = (uint32_t)pick(0, v.nranks - 1);
    v.nhealthy = (uint32_t)pick(0, v.nranks), v.behind = pick(0, 1);
    std::string sources, gone, added, local;
    for (v.nsources = (uint32_t)pick(0, v.nhealthy); sources.size() < v.nsources * 4;)
        sources += word((uint32_t)pick(0, v.nranks - 1));
    if (!whole) {
        v.base_term = dice()(), v.base_epoch = pick(1, UINT64_MAX);
        for (uint32_t rank = 0; rank < 9; rank++)
            if (pick(0, 1))
                gone += word(rank), v.ngone++;
    }
    for (uint32_t rank = 0; rank < v.nranks; rank++) {
        const std::string e = endpoint(rank);
        if (whole || pick(0, 1))
            added += word(rank) + word((uint32_t)e.size()) + e, v.nadded++;
    }
    for (v.nlocal = (uint32_t)pick(whole ? 1 : 0, 3); v.nlocal > 0 && local.empty();) {
        for (uint32_t i = 0; i < v.nlocal; i++) {
            const std::string e = endpoint(i);
            local += word((uint32_t)e.size()) + e;
        }
    }
    v.sources = bytes_of(sources), v.gone = bytes_of(gone);
    v.added = bytes_of(added), v.added_bytes = added.size();
    v.local = bytes_of(local), v.local_bytes = local.size();
    const std::string bytes = encode<ft_members_view, ft_members_view_encode>(v);
    const size_t head = ft_members_view_encode_head(nullptr, &v);
    EXPECT_EQ(bytes.substr(head), gone + added + local);
    return bytes;
}

TEST(Wire, Views)
{
    for (int i = 0; i < 8; i++)
        check(view(i % 2), view_decoder);
}

// A view of two ranks on a base of three, of which `change` makes nonsense.
struct Parts {
    ft_members_view v = {};
    std::string sources = word(1), gone = word(0) + word(2), added, local;
    Parts()
    {
        v.epoch = 2, v.base_epoch = 1, v.nranks = 2, v.nhealthy = 1;
        v.nsources = 1, v.ngone = 2, v.nadded = 2, v.nlocal = 1;
        added = entry(0) + entry(1);
        local = entry(0).substr(4);
    }
    static std::string entry(uint32_t rank)
    {
        const std::string e = endpoint(rank);
        return word(rank) + word((uint32_t)e.size()) + e;
    }
};

bool is_view(void (*change)(Parts &))
{
    Parts p;
    change(p);
    p.v.sources = bytes_of(p.sources), p.v.gone = bytes_of(p.gone);
    p.v.added = bytes_of(p.added), p.v.added_bytes = p.added.size();
    p.v.local = bytes_of(p.local), p.v.local_bytes = p.local.size();
    std::string again;
    return view_decoder(encode<ft_members_view, ft_members_view_encode>(p.v), &again);
}

TEST(Wire, ViewsThatMakeNoSense)
{
    using P = Parts;
    EXPECT_TRUE(is_view([](P &) {}));
    EXPECT_FALSE(is_view([](P &p) { p.v.slot = FT_SLOTS_MOST; }));
    EXPECT_FALSE(is_view([](P &p) { p.v.epoch = 0; }));
    EXPECT_FALSE(is_view([](P &p) { p.v.rank = 2; }));
    EXPECT_FALSE(is_view([](P &p) { p.v.nhealthy = 3; }));
    EXPECT_FALSE(is_view([](P &p) { p.sources = word(2); })) << "there is no such rank";
    EXPECT_FALSE(is_view([](P &p) { p.gone = word(2) + word(0); })) << "not ascending";
    EXPECT_FALSE(is_view([](P &p) { p.gone = word(2) + word(2); })) << "twice";
    EXPECT_FALSE(is_view([](P &p) { p.added = P::entry(1) + P::entry(0); }));
    EXPECT_FALSE(is_view([](P &p) { p.added = P::entry(1) + P::entry(1); }));
    EXPECT_FALSE(is_view([](P &p) { p.added = P::entry(0) + P::entry(2); }));
    EXPECT_FALSE(is_view([](P &p) { p.added += 'x'; })) << "more bytes than entries";
    EXPECT_FALSE(is_view([](P &p) { p.local += p.local; })) << "more entries than were told";
    EXPECT_FALSE(is_view([](P &p) { p.local[4 + 24] ^= 1; })) << "the endpoint is longer";
    EXPECT_FALSE(is_view([](P &p) { p.local = word(8) + std::string(8, 'e'); }));
    EXPECT_FALSE(is_view([](P &p) { p.v.nlocal = FT_LOCAL_MOST + 1; }));
}

TEST(Wire, ViewsWithoutABaseThatMakeNoSense)
{
    using P = Parts;
    EXPECT_FALSE(is_view([](P &p) { p.v.base_epoch = 0; })) << "nobody can be gone";
    EXPECT_TRUE(is_view([](P &p) { p.v.base_epoch = 0, p.v.ngone = 0, p.gone.clear(); }));
    EXPECT_FALSE(is_view([](P &p) {
        p.v.base_epoch = 0, p.v.ngone = 0, p.gone.clear();
        p.v.nadded = 1, p.added = P::entry(0);
    })) << "a rank is missing";
    EXPECT_FALSE(is_view([](P &p) {
        p.v.base_epoch = 0, p.v.ngone = 0, p.gone.clear();
        p.v.nlocal = 0, p.local.clear();
    })) << "the ranks of the replica are missing";
}

} // namespace
