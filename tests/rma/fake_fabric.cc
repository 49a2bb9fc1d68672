#include "tests/rma/fake.h"

FakeNet *fake_net;

struct FakeFabric {
    ft_fabric base; // the first field
    std::deque<std::pair<ft_fabric_event, std::string>> events;
    std::string text;
};

FakeNet::FakeNet(uint64_t seed) : random(seed)
{
    fake_net = this;
}

FakeNet::~FakeNet()
{
    fake_net = nullptr;
    fake_side_reset();
}

void FakeNet::complain(const std::string &text)
{
    wrong++;
    wrong_text += text + "; ";
}

static void event(FakeWay *w, int what, uint32_t immediate, unsigned count, const char *text)
{
    ft_fabric_event e;
    memset(&e, 0, sizeof e);
    e.what = (decltype(e.what))what;
    e.way = &w->base;
    e.immediate = immediate;
    e.count = count;
    e.status = FT_LINK;
    w->fabric->events.emplace_back(e, text ? text : "");
}

static std::string bytes_of(const FakeWrite &write)
{
    if (write.copied)
        return write.inlined;
    std::string s;
    for (auto &p : write.pieces)
        s.append((const char *)p.region->at + p.offset, p.len_bytes);
    return s;
}

// Stores a write at the peer. False: nothing is there any more.
static bool store(FakeWay *w, FakeWrite &write, bool half)
{
    auto peer = fake_net->all.find(w->peer);
    if (peer == fake_net->all.end() || peer->second->stopped)
        return false;
    FakeWay *p = peer->second;
    for (auto &piece : write.pieces)
        if (!write.copied && ((const FakeRegion *)(const void *)piece.region)->gone)
            fake_net->complain("a write reads memory that was unregistered");
    if (p->into->gone)
        fake_net->complain("a way is open into memory that was unregistered");
    std::string bytes = bytes_of(write);
    uint32_t immediate = write.immediate;
    size_t to = write.to;
    if (fake_net->spoil)
        fake_net->spoil(w, &immediate, &bytes, &to);
    if (to + bytes.size() > p->into->base.len_bytes) {
        fake_net->complain("a write out of bounds");
        return false;
    }
    memcpy(p->into->base.at + to, bytes.data(), half ? bytes.size() / 2 : bytes.size());
    if (half)
        return true;
    fake_net->delivered++;
    event(p, ft_fabric_event::FT_FABRIC_ARRIVED, immediate, 0, nullptr);
    return true;
}

static void tell(FakeWay *w)
{
    if (!w->told && !w->stopping)
        event(w, ft_fabric_event::FT_FABRIC_FAILED, 0, 0, "the test broke it");
    w->told = true;
}

// One of the way's first writes moves: is stored, or its end is reported.
static void move(FakeWay *w)
{
    FakeNet &net = *fake_net;
    const size_t window = net.unended ? w->out.size() : std::min<size_t>(w->out.size(), 4);
    size_t i = net.any_order || net.unended ? net.below((unsigned)window) : 0;
    FakeWrite &write = w->out[i];
    const bool ends = !net.unended || write.pieces.size() < 2;
    if (!write.delivered) {
        write.delivered = true;
        if (!store(w, write, false)) {
            w->broken = true;
            return;
        }
        if (net.below(2))
            return; // its completion comes later, and what follows may overtake it
    }
    if (i != 0 || !ends)
        return;
    w->silent++;
    if (write.asked) {
        event(w, ft_fabric_event::FT_FABRIC_WRITTEN, 0, w->silent, nullptr);
        w->silent = 0;
    }
    w->out.pop_front();
}

static void end(FakeWay *w)
{
    w->stopped = true;
    w->out.clear();
    event(w, ft_fabric_event::FT_FABRIC_STOPPED, 0, 0, nullptr);
}

void FakeNet::step()
{
    now_ns += 1000;
    fake_side_step(*this);
    if (all.empty())
        return;
    auto at = all.begin();
    std::advance(at, below((unsigned)all.size()));
    FakeWay *w = at->second;
    if (w->stopped)
        return;
    if (w->stopping && below(4) == 0)
        end(w);
    else if (w->broken && below(8) == 0)
        tell(w);
    else if (!w->broken && !w->stopping && !w->out.empty() && !(held && held(w)))
        move(w);
}

void FakeNet::break_way(FakeWay *w)
{
    if (w->broken)
        return;
    w->broken = true;
    // Some of the writes on the way arrive without an answer, and one by half.
    for (auto &write : w->out)
        if (!write.delivered && below(2)) {
            write.delivered = true;
            (void)store(w, write, below(2) == 0);
        }
    auto peer = all.find(w->peer);
    if (peer != all.end() && !peer->second->broken && below(2))
        break_way(peer->second);
}

std::vector<FakeWay *> FakeNet::ways_of(uint64_t)
{
    std::vector<FakeWay *> list;
    for (auto &w : all)
        list.push_back(w.second);
    return list;
}

static FakeFabric *of(ft_fabric *f)
{
    return (FakeFabric *)(void *)f;
}
static FakeWay *of(ft_fabric_way *w)
{
    return (FakeWay *)(void *)w;
}

extern const ft_fabric_ops fake_ops;

static int fake_open(const ft_fabric_config *, ft_fabric **out)
{
    auto *f = new FakeFabric();
    f->base.ops = &fake_ops;
    f->base.ways = fake_net->ways;
    f->base.inline_bytes = fake_net->inline_bytes;
    *out = &f->base;
    return FT_OK;
}
static void fake_close(ft_fabric *f)
{
    delete of(f);
}
static size_t fake_hint(ft_fabric *, void *buf)
{
    memcpy(buf, "fake", 4);
    return 4;
}
static bool fake_reaches(ft_fabric *, const void *hint, size_t len)
{
    return len == 4 && memcmp(hint, "fake", 4) == 0;
}

static int fake_reg(ft_fabric *f, void *at, size_t len, ft_fabric_access access,
                    ft_fabric_region **out)
{
    if (fake_net->fail_reg)
        return ft_fail(fake_net->fail_reg, "the test allows no registered memory");
    auto *r = new FakeRegion();
    r->base.fabric = f;
    r->base.at = (unsigned char *)at;
    r->base.len_bytes = len;
    r->access = access;
    *out = &r->base;
    return FT_OK;
}
static void fake_unreg(ft_fabric_region *region, bool unmap)
{
    auto *r = (FakeRegion *)(void *)region;
    for (auto &w : fake_net->all) {
        if (w.second->into == r && !w.second->stopped)
            fake_net->complain("memory was unregistered while a way into it was open");
        for (auto &write : w.second->out)
            for (auto &piece : write.pieces)
                if (piece.region == region && !w.second->stopped)
                    fake_net->complain("memory was unregistered while a write read it");
    }
    if (unmap)
        ft_unmap(region->at, region->len_bytes);
    delete r;
}

static int fake_way_open(ft_fabric *f, unsigned index, ft_fabric_region *into, void *user,
                         ft_fabric_way **out)
{
    fake_net->opens.push_back(fake_net->now_ns);
    if (fake_net->refuse_opens || (int)index == fake_net->port_down)
        return ft_fail(FT_LINK, "the test opens no ways");
    auto *w = new FakeWay();
    w->base.fabric = f;
    w->base.index = index;
    w->base.port = index;
    w->base.user = user;
    w->fabric = of(f);
    w->into = (FakeRegion *)(void *)into;
    w->number = fake_net->next++;
    fake_net->all[w->number] = w;
    *out = &w->base;
    return FT_OK;
}
static size_t fake_way_info(ft_fabric_way *w, void *buf)
{
    memcpy(buf, &of(w)->number, 8);
    return 8;
}
static int fake_way_connect(ft_fabric_way *w, const void *info, size_t len)
{
    if (len != 8)
        return ft_fail(FT_PROTOCOL, "not an info");
    memcpy(&of(w)->peer, info, 8);
    return FT_OK;
}

static int fake_write(ft_fabric_way *way, const ft_fabric_write *write)
{
    FakeWay *w = of(way);
    if (w->stopping || w->told)
        return ft_fail(FT_LINK, "the way has failed");
    if (w->out.size() >= fake_net->depth)
        return FT_AGAIN;
    FakeWrite copy;
    for (unsigned i = 0; i < write->npieces; i++)
        copy.pieces.push_back(write->piece[i]);
    copy.copied = false;
    copy.to = write->to;
    copy.immediate = write->immediate;
    copy.asked = write->asked;
    copy.delivered = copy.silent = false;
    copy.inlined = bytes_of(copy);
    copy.copied = write->inlined;
    if (write->inlined && copy.inlined.size() > fake_net->inline_bytes)
        fake_net->complain("too long a write was inlined");
    w->out.push_back(copy);
    return FT_OK;
}

static void fake_way_stop(ft_fabric_way *way)
{
    if (of(way)->stopping)
        fake_net->complain("a way was stopped twice");
    of(way)->stopping = true;
}
static void fake_way_close(ft_fabric_way *way)
{
    FakeWay *w = of(way);
    auto &events = w->fabric->events;
    for (auto e = events.begin(); e != events.end();)
        e = e->first.way == way ? events.erase(e) : e + 1;
    fake_net->all.erase(w->number);
    delete w;
}
static void fake_way_describe(const ft_fabric_way *way, char *buf)
{
    snprintf(buf, FT_FABRIC_TEXT_BYTES, "fake way %u", way->index);
}

static int fake_poll(ft_fabric *fabric, ft_fabric_event *events, int max, bool *busy)
{
    FakeFabric *f = of(fabric);
    int n = 0;
    while (n < max && !f->events.empty()) {
        // all of one poll point to one text
        if (!f->events.front().second.empty())
            f->text = f->events.front().second;
        events[n] = f->events.front().first;
        events[n++].text = f->text.c_str();
        f->events.pop_front();
    }
    *busy |= n > 0;
    return n;
}
static int fake_fd(ft_fabric *)
{
    return -1;
}
static bool fake_arm(ft_fabric *fabric, bool on)
{
    return !on || of(fabric)->events.empty();
}
static void fake_describe(FILE *out)
{
    fprintf(out, "fake\n");
}

const ft_fabric_ops fake_ops = {"fake",         fake_open,         fake_close, fake_hint,
                                fake_reaches,   fake_reg,          fake_unreg, fake_way_open,
                                fake_way_info,  fake_way_connect,  fake_write, fake_way_stop,
                                fake_way_close, fake_way_describe, fake_poll,  fake_fd,
                                fake_arm,       fake_describe};

static int open_transport(const ft_transport_config *config, ft_transport **out)
{
    return ft_rma_open(&fake_transport, &fake_ops, config, out);
}

static ft_transport_ops table()
{
    ft_transport_ops t;
    memset(&t, 0, sizeof t);
    t.name = "fake";
    t.caps.scope = FT_SCOPE_NETWORK;
    t.open = open_transport;
    t.close = ft_rma_close;
    t.address = ft_rma_address;
    t.reaches = ft_rma_reaches;
    t.connect = ft_rma_connect;
    t.disconnect = ft_rma_disconnect;
    t.bind = ft_rma_bind;
    t.unbind = ft_rma_unbind;
    t.send = ft_rma_send;
    t.reserve = ft_rma_reserve;
    t.commit = ft_rma_commit;
    t.cancel = ft_rma_cancel;
    t.recv = ft_rma_recv;
    t.peek = ft_rma_peek;
    t.release = ft_rma_release;
    t.drained = ft_rma_drained;
    t.flushed = ft_rma_flushed;
    t.poll = ft_rma_poll;
    t.fd = ft_rma_fd;
    t.arm = ft_rma_arm;
    t.trim = ft_rma_trim;
    t.reg = ft_rma_reg;
    t.unreg = ft_rma_unreg;
    return t;
}
const ft_transport_ops fake_transport = table();
