// Stands in for side connections (transport/side.h): conversations between engines of this process,
// whose messages come in order, and late.
#include "tests/rma/fake.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace
{
struct Message {
    ft_side_what what;
    unsigned kind;
    std::string data;
    bool orderly;
};
struct Conn {
    ft_side_conn base; // the first field
    ft_side *side;
    Conn *other;
    std::deque<Message> way, here; // on the way to this end; arrived
    bool down, ended;
};
std::vector<std::unique_ptr<Conn>> conns;
std::map<uint64_t, ft_side *> sides;
} // namespace

struct ft_side {
    uint64_t self;
    int fd;
    std::deque<std::string> texts;
};

static Conn *of(const ft_side_conn *c)
{
    return (Conn *)(void *)const_cast<ft_side_conn *>(c);
}

static void put(Conn *to, ft_side_what what, unsigned kind, const std::string &data, bool orderly)
{
    if (to && !to->ended && !to->down)
        to->way.push_back({what, kind, data, orderly});
}

int ft_side_open(const ft_transport_config *config, ft_side **out)
{
    auto *s = new ft_side();
    s->self = config->self;
    s->fd = ft_fd_own(eventfd(0, EFD_CLOEXEC));
    sides[s->self] = s;
    *out = s;
    return FT_OK;
}
void ft_side_close(ft_side *s)
{
    for (auto &c : conns)
        if (c->side == s && !c->ended)
            ft_side_disconnect(&c->base, true);
    sides.erase(s->self);
    ft_fd_close(&s->fd);
    delete s;
}
int ft_side_address(ft_side *s, void *buf, size_t)
{
    memcpy(buf, &s->self, 8);
    return 8;
}
bool ft_side_reaches(ft_side *, const void *, size_t len)
{
    return len == 8;
}

static Conn *conn(ft_side *side, uint64_t peer, void *user)
{
    conns.emplace_back(new Conn());
    Conn *c = conns.back().get();
    c->base.peer = peer;
    c->base.user = user;
    c->side = side;
    return c;
}

int ft_side_connect(ft_side *s, uint64_t peer, const void *, size_t, void *user, ft_side_conn **out)
{
    Conn *here = conn(s, peer, user);
    auto there = sides.find(peer);
    if (there == sides.end()) {
        put(here, FT_SIDE_DOWN, 0, "", false);
    } else {
        Conn *other = conn(there->second, s->self, nullptr);
        here->other = other;
        other->other = here;
        put(other, FT_SIDE_ACCEPTED, 0, "", false);
        put(here, FT_SIDE_UP, 0, "", false);
    }
    *out = &here->base;
    return FT_OK;
}

int ft_side_send(ft_side_conn *conn, unsigned kind, const void *data, size_t len)
{
    Conn *c = of(conn);
    if (c->down)
        return ft_fail(FT_LINK, "it is down");
    if (len > FT_SIDE_BYTES)
        return ft_fail(FT_INVAL, "too long");
    if (!c->other || c->other->way.size() >= FT_SIDE_QUEUE || fake_net->side_full)
        return FT_AGAIN;
    put(c->other, FT_SIDE_MESSAGE, kind, std::string((const char *)data, len), false);
    return FT_OK;
}
bool ft_side_flushed(ft_side_conn *)
{
    return true;
}
void ft_side_disconnect(ft_side_conn *conn, bool goodbye)
{
    Conn *c = of(conn);
    if (c->ended)
        return;
    c->base.user = nullptr;
    c->ended = true;
    put(c->other, FT_SIDE_DOWN, 0, "", goodbye);
}

int ft_side_poll(ft_side *s, ft_side_event *events, int max, bool *busy)
{
    int n = 0;
    s->texts.clear();
    for (size_t i = 0; i < conns.size() && n < max; i++) {
        Conn *c = conns[i].get();
        while (c->side == s && !c->ended && !c->here.empty() && n < max) {
            Message m = c->here.front();
            c->here.pop_front();
            s->texts.push_back(m.data);
            ft_side_event e;
            memset(&e, 0, sizeof e);
            e.what = m.what;
            e.conn = &c->base;
            e.kind = m.kind;
            e.data = s->texts.back().data();
            e.len_bytes = m.data.size();
            e.orderly = m.orderly;
            e.reason = FT_LINK;
            e.text = "the test ended it";
            c->down |= m.what == FT_SIDE_DOWN;
            events[n++] = e;
        }
    }
    *busy |= n > 0;
    return n;
}
int ft_side_fd(ft_side *s)
{
    return s->fd;
}
bool ft_side_arm(ft_side *, bool)
{
    return true;
}
uint64_t ft_side_look_ns(const ft_side *)
{
    return 0;
}
bool ft_side_measure(ft_side_conn *, ft_link_path *)
{
    return false;
}

void fake_side_step(FakeNet &net)
{
    if (conns.empty() || net.side_held)
        return;
    Conn *c = conns[net.below((unsigned)conns.size())].get();
    if (c->way.empty())
        return;
    c->here.push_back(c->way.front());
    c->way.pop_front();
}
void fake_side_kill(uint64_t engine)
{
    for (size_t i = 0; i < conns.size(); i++)
        if (conns[i]->base.peer == engine && !conns[i]->ended)
            put(conns[i].get(), FT_SIDE_DOWN, 0, "", false);
}
void fake_side_reset()
{
    conns.clear();
}
void fake_side_inject(uint64_t from, unsigned kind, const std::string &data)
{
    for (size_t i = conns.size(); i-- > 0;)
        if (conns[i]->base.peer == from && !conns[i]->ended) {
            put(conns[i].get(), FT_SIDE_MESSAGE, kind, data, false);
            return;
        }
}
