// A coordinator that is made by hand, and what it says.
#ifndef FT_MANAGED_FAKE_H
#define FT_MANAGED_FAKE_H

#include "tests/unit/managed_helpers.h"

namespace managed
{

using talk::operator+;

// A coordinator made by hand.
class Fake
{
  public:
    std::string at;
    talk::Talk talk;

    Fake()
    {
        ft_net_address where = address_of("127.0.0.1:1");
        EXPECT_EQ(FT_OK, ft_net_listen(&where, 1, AF_INET, 0, &listener));
        char text[FT_NET_TEXT_BYTES];
        at = ft_net_text(&where, text);
    }
    ~Fake()
    {
        talk.end();
        ft_fd_close(&listener);
    }
    // Waits for the member's next connection, and for its JOIN.
    bool take(ft_members_join &join)
    {
        int fd = -1;
        if (!await([&] { return ft_net_accept(listener, &fd) == FT_OK; }))
            return false;
        int own = dup(fd);
        ft_fd_close(&fd);
        talk.start(own, false, key_of().data());
        return await([&] { return talk.is_open(); }) && hear(FT_MEMBERS_JOIN) &&
               ft_members_join_decode(message.bytes.data(), message.bytes.size(), &join) == FT_OK;
    }
    bool hear(unsigned type)
    {
        return await([&] { return talk.hear(message) && message.type == type; });
    }
    void tell(unsigned type, const talk::Bytes &bytes = {})
    {
        EXPECT_TRUE(talk.say(type, bytes, FT_MEMBERS_SERVICE));
    }
    void tell_joined(const ft_role &role, uint64_t term, uint64_t epoch)
    {
        talk::Bytes name(ft_members_role_encode(nullptr, &role));
        ft_members_role_encode(name.data(), &role);
        tell(FT_MEMBERS_JOINED,
             talk::number(0, 4) + talk::number(term, 8) + talk::number(epoch, 8) + name);
    }
    bool await_end()
    {
        return await([&] {
            talk.hear(message);
            return talk.ended || talk.fd < 0;
        });
    }
    talk::Message message;

  private:
    int listener = -1;
};

// What differs from an earlier view: ranks of that one, and ranks of the new one.
struct Change {
    uint64_t base_epoch;
    std::vector<unsigned> gone, added;
};

inline talk::Bytes endpoint_bytes(uint64_t engine)
{
    ft_endpoint endpoint = endpoint_of(engine);
    talk::Bytes wire(FT_ENDPOINT_WIRE_MAX);
    wire.resize(ft_endpoint_encode(wire.data(), &endpoint));
    return talk::number(wire.size(), 4) + wire;
}

// A view of these engines, the member's own at `rank`.
inline talk::Bytes view_of(const std::vector<uint64_t> &engines, unsigned rank, uint64_t epoch,
                           Change change = {0, {}, {}})
{
    talk::Bytes added, gone, local = endpoint_bytes(engines[rank]);
    for (unsigned i = 0; change.base_epoch == 0 && i < engines.size(); i++)
        change.added.push_back(i);
    for (unsigned one : change.added)
        added = added + talk::number(one, 4) + endpoint_bytes(engines[one]);
    for (unsigned one : change.gone)
        gone = gone + talk::number(one, 4);
    ft_members_view view = {};
    view.term = 5;
    view.epoch = epoch;
    view.base_term = change.base_epoch ? 5 : 0;
    view.base_epoch = change.base_epoch;
    view.nranks = static_cast<uint32_t>(engines.size());
    view.rank = rank;
    view.ngone = static_cast<uint32_t>(change.gone.size());
    view.gone = gone.data();
    view.nadded = static_cast<uint32_t>(change.added.size());
    view.added = added.data();
    view.added_bytes = added.size();
    view.nlocal = change.base_epoch ? 0 : 1;
    view.local = local.data();
    view.local_bytes = view.nlocal ? local.size() : 0;
    talk::Bytes out(ft_members_view_encode(nullptr, &view));
    ft_members_view_encode(out.data(), &view);
    return out;
}

struct Played {
    Fake fake;
    std::unique_ptr<Member> member;
    ft_members_join join = {};

    Played()
    {
        Options options;
        options.at = {fake.at};
        member = std::make_unique<Member>(options);
    }
    // Registers it, and answers its ask with a view of these engines.
    Answer give(const talk::Bytes &view, uint64_t epoch)
    {
        Answer answer;
        EXPECT_TRUE(fake.take(join));
        fake.tell_joined(role_of("a"), 5, epoch);
        std::thread asker([&] { answer = member->view(); });
        EXPECT_TRUE(fake.hear(FT_MEMBERS_ASK));
        fake.tell(FT_MEMBERS_VIEW, view);
        asker.join();
        return answer;
    }
    // Registers it. Its caller gives up, but the coordinator has heard it.
    void ask_in_vain()
    {
        EXPECT_TRUE(fake.take(join));
        fake.tell_joined(role_of("a"), 5, 10);
        EXPECT_TRUE(await([&] {
            EXPECT_EQ(FT_TIMEOUT, member->view({7, false, {}, 0.1}).status);
            return fake.talk.hear(fake.message) && fake.message.type == FT_MEMBERS_ASK;
        }));
    }
    // The next ASK, after those that were in vain.
    ft_members_ask hear_ask(uint64_t step)
    {
        ft_members_ask ask = {};
        do
            EXPECT_TRUE(fake.hear(FT_MEMBERS_ASK));
        while (ft_members_ask_decode(fake.message.bytes.data(), fake.message.bytes.size(), &ask) ==
                   FT_OK &&
               ask.step != step);
        return ask;
    }
};

} // namespace managed

#endif
