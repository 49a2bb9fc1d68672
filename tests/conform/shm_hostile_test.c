/*
 * Property: whatever a peer says on the socket of the shm transport, passes over it, or writes into
 * shared memory, an engine does not crash, hang, keep descriptors, or deliver more than a chunk;
 * and honest peers can still connect. Method: a hand-made peer, which knows the secret where that
 * is needed, against one engine in this process. Corruption is random from a printed seed. Replay:
 * FT_SEED=<seed> shm_hostile_test. FT_ROUNDS sets the number of rounds.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CHUNK 32768 /* long enough to be lent */
#define CHECK(x)                                                                                 \
    do {                                                                                         \
        if (!(x)) {                                                                              \
            fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #x, ft_fail_text()); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static uint64_t skew_ns; /* the test's clock runs ahead by this */
static uint64_t skewed_now(struct ft_env *env)
{
    return ft_now_ns(ft_env_real()) + (env ? skew_ns : 0);
}
static void real_random(struct ft_env *env, void *buf, size_t len)
{
    (void)env;
    ft_env_real()->random(ft_env_real(), buf, len);
}
static struct ft_env skewed = {.now_ns = skewed_now, .random = real_random};

static uint64_t state;
static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static struct ft_transport *engine;
static struct ft_pinned *pinned; /* no device reaches it */
static struct ft_link *accepted;
static int downs;

static void turns(int n)
{
    struct ft_event ev[8];
    bool busy;
    while (n-- > 0) {
        skew_ns += 20000; /* so that sockets are looked at */
        int got = engine->ops->poll(engine, ev, 8, &busy);
        for (int i = 0; i < got; i++) {
            if (ev[i].what == FT_EVENT_ACCEPTED)
                accepted = ev[i].link;
            if (ev[i].what == FT_EVENT_DOWN)
                downs++;
        }
    }
}

static struct ft_transport *open_engine(uint64_t id)
{
    struct ft_transport_config c = {
        .env = &skewed, .self = id, .chunk_bytes = CHUNK, .rank = -1, .pinned = pinned};
    struct ft_transport *t;
    memset(c.key, 7, sizeof c.key);
    CHECK(ft_transport_shm.open(&c, &t) == FT_OK);
    for (uint64_t ctx = 1; ctx <= 3; ctx++)
        CHECK(t->ops->bind(t, ctx) == FT_OK);
    return t;
}

static int dial(void)
{
    char address[FT_ADDRESS_BYTES];
    CHECK(engine->ops->address(engine, address, sizeof address) > 12 + FT_SHM_NAME_BYTES - 1);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    memcpy(sa.sun_path + 1, address + 12, FT_SHM_NAME_BYTES);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&sa,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + FT_SHM_NAME_BYTES)) ==
          0);
    return fd;
}

/* Proves the secret on the raw side. */
static void prove(int fd, bool initiator, uint64_t self)
{
    unsigned char key[FT_KEY_BYTES];
    memset(key, 7, sizeof key);
    struct ft_auth auth;
    ft_auth_start(&auth, ft_env_real(), fd, initiator, key, self, 0, FT_PURPOSE_SHM, 0,
                  ft_now_ns(ft_env_real()) + 5000000000u);
    int rc;
    while ((rc = ft_auth_turn(&auth)) == FT_AGAIN)
        turns(1);
    CHECK(rc == FT_OK);
}

static void hand_over(int socket, const void *data, size_t len, const int *fd, int nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fd, (size_t)nfds * sizeof(int));
    }
    CHECK(sendmsg(socket, &m, MSG_NOSIGNAL) == (ssize_t)len);
}

/* ---- what may come over the socket ----------------------------------------------------------- */

static void garbage_is_refused(void)
{
    int before = ft_fd_count();
    for (int i = 0; i < 300; i++) {
        int fd = dial();
        unsigned char junk[600];
        size_t n = rnd() % sizeof junk;
        for (size_t k = 0; k < n; k++)
            junk[k] = (unsigned char)rnd();
        if (i % 3 == 0 && n >= 8)
            memcpy(junk, "FTCCL\0\0\0", 8);
        CHECK(send(fd, junk, n, MSG_NOSIGNAL) >= 0 || errno == EPIPE);
        turns(20);
        close(fd);
        turns(20);
    }
    CHECK(!accepted);
    CHECK(ft_fd_count() == before);
}

enum offer {
    NO_FD,
    SHORT_FILE,
    LONG_FILE,
    UNSEALED,
    HALF_SEALED,
    READ_ONLY,
    DEV_NULL,
    FIVE_FDS,
    SHORT_WORD,
    OTHER_CHUNK,
    OTHER_LENGTH,
    NO_MAGIC,
    NO_LIFE,
    NULL_LIFE,
    LONG_LIFE,
    NO_ARENA,
    UNSEALED_ARENA,
    SHORT_ARENA,
    ODD_ARENA,
    HUGE_ARENA,
    HANG_UP,
    OFFERS
};

static int memory(size_t len, int seals, bool formatted)
{
    int fd = memfd_create("hostile", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    size_t whole = ft_slots_bytes(CHUNK);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)whole) == 0);
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct ft_slots unused;
    CHECK(p != MAP_FAILED);
    if (formatted)
        ft_slots_format(&unused, p, CHUNK);
    munmap(p, whole);
    CHECK(ftruncate(fd, (off_t)len) == 0);
    if (seals)
        CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* A liveness page, or what comes in its place. */
static int life_of(enum offer what)
{
    int fd;
    if (what == LONG_LIFE)
        return memory(ft_slots_bytes(CHUNK), F_SEAL_SHRINK | F_SEAL_GROW, true);
    if (what == NULL_LIFE)
        return open("/dev/null", O_RDWR);
    CHECK(ft_liveness_open(&fd) == FT_OK);
    ft_liveness_close(); /* the engine has it too */
    return dup(fd);
}

#define ARENA_BYTES 65536u

/* Memory that this peer lends, and the length that it claims. */
static int arena_of(enum offer what, uint64_t *claimed)
{
    int fd = memfd_create("arena", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    size_t len = what == ODD_ARENA ? ARENA_BYTES + 1 : ARENA_BYTES;
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    if (what != UNSEALED_ARENA)
        CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    *claimed = what == SHORT_ARENA ? 2 * ARENA_BYTES : what == HUGE_ARENA ? UINT64_MAX - 4095 : len;
    return fd;
}

static void make_offer(int s, enum offer what)
{
    size_t len = ft_slots_bytes(CHUNK);
    int both = F_SEAL_SHRINK | F_SEAL_GROW;
    struct ft_shm_offer o = {.chunk_bytes = what == OTHER_CHUNK ? 2 * CHUNK : CHUNK,
                             .len_bytes = what == OTHER_LENGTH ? 2 * len : len};
    size_t word = sizeof o;
    int fd[5], n = 1;
    switch (what) {
    case NO_FD:
        n = 0;
        break;
    case SHORT_FILE:
        fd[0] = memory(len - 4096, both, what != NO_MAGIC);
        break;
    case LONG_FILE:
        fd[0] = memory(len + 4096, both, what != NO_MAGIC);
        break;
    case UNSEALED:
        fd[0] = memory(len, 0, what != NO_MAGIC);
        break;
    case HALF_SEALED:
        fd[0] = memory(len, F_SEAL_GROW, what != NO_MAGIC);
        break;
    case READ_ONLY:
        fd[0] = memory(len, both | F_SEAL_WRITE, what != NO_MAGIC);
        break;
    case DEV_NULL:
        fd[0] = open("/dev/null", O_RDWR);
        break;
    case FIVE_FDS:
        n = 5;
        for (int i = 0; i < n; i++)
            fd[i] = memory(len, both, what != NO_MAGIC);
        break;
    case SHORT_WORD:
        word = 5;
        fd[0] = memory(len, both, what != NO_MAGIC);
        break;
    default:
        fd[0] = memory(len, both, what != NO_MAGIC);
        break;
    }
    if (n == 1 && what != NO_LIFE) {
        fd[n++] = life_of(what);
        fd[n++] = arena_of(what, &o.arena_bytes);
        fd[n++] = life_of(NO_MAGIC);
    }
    if (what == NO_ARENA)
        close(fd[--n]), close(fd[--n]);
    if (what != HANG_UP)
        hand_over(s, &o, word, fd, n);
    for (int i = 0; i < n; i++)
        close(fd[i]);
}

static void bad_offers_are_refused(void)
{
    int before = ft_fd_count();
    for (int what = 0; what < OFFERS; what++) {
        int s = dial();
        prove(s, true, 0xbad);
        make_offer(s, (enum offer)what);
        if (what == HANG_UP)
            close(s);
        turns(50);
        if (accepted)
            fprintf(stderr, "offer %d was accepted\n", what);
        CHECK(!accepted);
        CHECK(ft_fd_count() == before);
        if (what == HANG_UP)
            continue;
        unsigned char word = 0;
        CHECK(recv(s, &word, 1, 0) == 1 && word > FT_SHM_REFUSED);
        close(s);
    }
}

/* Silent connections take all places; they lose them in time, and an honest peer gets in. */
static void silence_ends(void)
{
    int fd[3 * FT_SHM_STRANGERS];
    for (size_t i = 0; i < FT_ARRAY_LEN(fd); i++)
        fd[i] = dial();
    turns(100);
    struct ft_shm *t = FT_CONTAINER(engine, struct ft_shm, local.base);
    CHECK(t->strangers == FT_SHM_STRANGERS);
    for (int round = 0; round < 4; round++) {
        skew_ns += 6000000000u;
        turns(20);
    }
    CHECK(t->strangers == 0);
    for (size_t i = 0; i < FT_ARRAY_LEN(fd); i++)
        close(fd[i]);
    struct ft_transport *honest = open_engine(5), *was = engine;
    char address[FT_ADDRESS_BYTES];
    int len = was->ops->address(was, address, sizeof address);
    struct ft_link *l;
    CHECK(honest->ops->connect(honest, 1, address, (size_t)len, &l) == FT_OK);
    struct ft_event ev[4];
    bool busy;
    for (int i = 0; i < 1000 && l->state == FT_LINK_CONNECTING; i++) {
        turns(1);
        honest->ops->poll(honest, ev, 4, &busy);
    }
    CHECK(l->state == FT_LINK_UP && accepted);
    honest->ops->close(honest);
    turns(50);
    CHECK(accepted->state == FT_LINK_DOWN && accepted->orderly);
    engine->ops->disconnect(accepted);
    accepted = NULL;
}

/* ---- what may be written into shared memory -------------------------------------------------- */

struct raw {
    int socket;
    void *memory;
    struct ft_slots slots;
    uint32_t descs;
};

#define PINNED_BYTES 65536u

/* Memory that the sender's GPU would write, and what it says of it: mostly true. */
static int pinned_of(struct ft_pinned_place *place)
{
    struct ft_pinned *own;
    CHECK(ft_pinned_make(PINNED_BYTES, &own) == FT_OK);
    ft_pinned_locate(own, place);
    int fd = rnd() % 8 ? dup(own->fd) : memory(PINNED_BYTES, 0, true);
    if (rnd() % 8 == 0)
        place->token++;
    if (rnd() % 8 == 0)
        place->len_bytes = rnd() % 2 ? 0 : rnd() % 2 ? UINT64_MAX - 4095 : 2 * PINNED_BYTES;
    ft_pinned_close(own);
    return fd;
}

/* As if this side's device reached memory of the sender's; here it can be read. */
static char on_device[PINNED_BYTES];

static void reach_there(void)
{
    struct ft_pinned *met =
        FT_CONTAINER(accepted, struct ft_shm_link, local.base)->local.slots.pinned;
    if (met && rnd() % 4)
        ft_pinned_set_devmem(met, ft_pinned_of_devmem(on_device, sizeof on_device));
}

static void close_met(struct ft_pinned *met)
{
    struct ft_pinned *over = ft_pinned_devmem(met);
    ft_pinned_set_devmem(met, NULL);
    if (over)
        ft_pinned_close(over);
    ft_pinned_close(met);
}

static void raw_open(struct raw *r)
{
    size_t len = ft_slots_bytes(CHUNK);
    r->socket = dial();
    prove(r->socket, true, 0xbad);
    int fd = memory(len, F_SEAL_SHRINK | F_SEAL_GROW, false);
    r->memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(r->memory != MAP_FAILED);
    ft_slots_format(&r->slots, r->memory, CHUNK);
    struct ft_shm_offer o = {.chunk_bytes = CHUNK, .len_bytes = len};
    int all[4] = {fd, life_of(NO_MAGIC), arena_of(NO_MAGIC, &o.arena_bytes), pinned_of(&o.pinned)};
    if (rnd() % 8 == 0)
        o.arena_bytes = 0; /* lends nothing, but may say so in messages */
    static uint64_t cookie = 0xc00c1e;
    o.cookie = cookie + (rnd() % 8 == 0);
    o.cookie_at = rnd() % 8 ? (uintptr_t)&cookie : rnd() % 2 ? 0 : rnd();
    hand_over(r->socket, &o, sizeof o, all, 4);
    for (int i = 0; i < 4; i++)
        close(all[i]);
    turns(50);
    CHECK(accepted && accepted->state == FT_LINK_UP);
    reach_there();
}

static uint32_t odd(uint32_t likely)
{
    switch (rnd() % 6) {
    case 0:
        return rnd();
    case 1:
        return UINT32_MAX - rnd() % 4;
    case 2:
        return CHUNK + rnd() % 3;
    default:
        return likely ? rnd() % likely : 0;
    }
}

/* A message that is mostly plausible, so that it gets far. */
static void raw_publish(struct raw *r)
{
    struct ft_header h = {.ctx = rnd() % 5,
                          .seq = rnd(),
                          .len = odd(CHUNK),
                          .lane = (uint16_t)(rnd() % 12),
                          .step = (uint16_t)rnd()};
    unsigned char small[FT_RXQ_SMALL_BYTES] = {1};
    uint32_t slot = rnd() % 8 ? 1 + rnd() % 96 : odd(104);
    static char here[CHUNK];
    static struct ft_pinned said; /* at address 0: places are addresses */
    struct ft_slots_place place = {.at = rnd() % 4   ? rnd() % (ARENA_BYTES + CHUNK)
                                         : rnd() % 2 ? UINT64_MAX - rnd() % CHUNK
                                                     : ARENA_BYTES - CHUNK + rnd() % 3};
    place.memory = rnd() % 4 ? FT_SLOTS_ARENA : rnd() % 8 ? FT_SLOTS_ELSEWHERE : rnd();
    if (slot > FT_SLOTS_MOST + FT_SLOTS_LOANS && rnd() % 8)
        place.memory = FT_SLOTS_ON_DEVICE;
    if (place.memory == FT_SLOTS_ON_DEVICE && rnd() % 8)
        place.at %= PINNED_BYTES - CHUNK + 2;
    if (place.memory == FT_SLOTS_ELSEWHERE && rnd() % 8)
        place.at = (uintptr_t)here;
    if (slot > FT_SLOTS_MOST)
        memcpy(small, &place, sizeof place);
    /* as publish writes it for a slot in pinned memory, or nearly */
    if (slot && slot <= FT_SLOTS_MOST && rnd() % 4 == 0) {
        r->slots.pinned = &said;
        r->slots.at[slot - 1] =
            (unsigned char *)(uintptr_t)(rnd() % 8 ? 1 + place.at % (PINNED_BYTES - CHUNK)
                                                   : place.at);
    }
    if (rnd() % 2) {
        slot = 0;
        if (rnd() % 8)
            h.len %= FT_RXQ_SMALL_BYTES + 1;
    }
    struct ft_header sane = h;
    /* publish would copy that much from here */
    if (!slot && sane.len > FT_RXQ_SMALL_BYTES)
        slot = UINT32_MAX;
    ft_slots_publish(&r->slots, &sane, slot, small);
    memset(r->slots.at, 0, sizeof r->slots.at);
    if (rnd() % 1024 == 0)
        ft_slots_unpin(&r->slots);
    r->slots.pinned = NULL;
}

static uint32_t sum, received, unfetched, far;

static void receive_some(void)
{
    static struct ft_msg held[16];
    static int nheld;
    struct ft_msg m;
    for (int i = 0; i < 8; i++) {
        if (accepted->ops->recv(accepted, 1 + rnd() % 3, rnd() % FT_LANES_ALL, &m) != FT_OK)
            continue;
        received++;
        CHECK(m.header.len <= CHUNK);
        if (m.devmem) {
            size_t at = (size_t)((const char *)m.data - on_device);
            CHECK(at < sizeof on_device && m.header.len <= sizeof on_device - at && m.withdrawn &&
                  m.header.lane <= FT_LANE_P2P);
            far++;
        }
        if (m.unfetched) {
            static char there[CHUNK];
            int rc = accepted->ops->fetch(accepted, &m, rnd() % 2 ? there : NULL);
            unfetched++;
            CHECK(rc == FT_OK     ? !m.unfetched && m.data
                  : rc == FT_LINK ? accepted->state == FT_LINK_DOWN
                                  : rc == FT_AGAIN && !ft_msg_intact(&m));
        }
        for (uint32_t k = 0; k < m.header.len && !m.unfetched; k++)
            sum += ((const unsigned char *)m.data)[k];
        if (nheld < 16 && rnd() % 4 == 0)
            held[nheld++] = m;
        else
            accepted->ops->release(accepted, &m);
    }
    if (rnd() % 4 == 0 || accepted->state == FT_LINK_DOWN)
        while (nheld)
            accepted->ops->release(accepted, &held[--nheld]);
}

static void raw_close(struct raw *r)
{
    munmap(r->memory, ft_slots_bytes(CHUNK));
    close(r->socket);
    turns(50);
    if (accepted->state != FT_LINK_DOWN)
        turns(2000);
    CHECK(accepted->state == FT_LINK_DOWN);
    receive_some(); /* lets go of its views */
    engine->ops->disconnect(accepted);
    accepted = NULL;
    for (struct ft_pinned *met; (met = ft_pinned_take_unkept(pinned, false)); close_met(met))
        CHECK(met->keepers == 0);
    CHECK(!pinned->met);
}

static void corrupted_memory_is_survived(int rounds)
{
    int before = ft_fd_count(), ended = 0;
    size_t len = ft_slots_bytes(CHUNK);
    struct raw r;
    raw_open(&r);
    for (int i = 0; i < rounds; i++) {
        unsigned char *bytes = r.memory;
        for (uint32_t k = rnd() % 3; k; k--)
            raw_publish(&r);
        if (rnd() % 4 == 0)
            bytes[rnd() % len] = (unsigned char)rnd();
        if (rnd() % 16 == 0)
            for (uint32_t at = rnd() % 98304, k = 0; k < 64; k++)
                bytes[at + k] = (unsigned char)rnd();
        if (rnd() % 64 == 0)
            ft_slots_starve(&r.slots);
        if (rnd() % 512 == 0)
            ft_shm_say(&(struct ft_shm_socket){.fd = r.socket}, (unsigned char)rnd());
        turns((int)(rnd() % 3) + (rnd() % 64 == 0 ? 300 : 0));
        if (rnd() % 128 == 0) {
            engine->ops->arm(engine, true);
            engine->ops->arm(engine, false);
        }
        receive_some();
        if (rnd() % 256 == 0) {
            engine->ops->unbind(engine, 3);
            CHECK(engine->ops->bind(engine, 3) == FT_OK);
        }
        if (accepted->state != FT_LINK_DOWN && rnd() % 1024)
            continue;
        ended++;
        while (accepted->state == FT_LINK_DOWN && rnd() % 4)
            receive_some();
        raw_close(&r);
        raw_open(&r);
    }
    raw_close(&r);
    CHECK(ft_fd_count() == before);
    printf("%d rounds, %d links ended, %u messages received, %u of them away, %u on a device, "
           "checksum %u\n",
           rounds, ended, received, unfetched, far, sum);
}

/* ---- what a receiver may give back ----------------------------------------------------------- */

struct sink {
    int listener, socket;
    void *memory;
    struct ft_link *link;
};

static void sink_open(struct sink *k)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    char address[FT_ADDRESS_BYTES];
    /* host and user are right, the name becomes ours */
    int len = engine->ops->address(engine, address, sizeof address);
    for (int i = 0; i < FT_SHM_NAME_BYTES; i++)
        address[12 + i] = (char)('a' + rnd() % 26);
    memcpy(sa.sun_path + 1, address + 12, FT_SHM_NAME_BYTES);
    k->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(k->listener, (struct sockaddr *)&sa,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + FT_SHM_NAME_BYTES)) == 0);
    CHECK(listen(k->listener, 1) == 0);
    CHECK(engine->ops->connect(engine, 0xbad, address, (size_t)len, &k->link) == FT_OK);
    k->socket = accept4(k->listener, NULL, NULL, SOCK_NONBLOCK);
    CHECK(k->socket >= 0);
    prove(k->socket, false, 0xbad);
    turns(50);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct ft_shm_offer o;
    struct iovec iov = {.iov_base = &o, .iov_len = sizeof o};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    CHECK(recvmsg(k->socket, &m, 0) == (ssize_t)sizeof o);
    int fd[4];
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    k->memory = mmap(NULL, ft_slots_bytes(CHUNK), PROT_READ | PROT_WRITE, MAP_SHARED, fd[0], 0);
    CHECK(k->memory != MAP_FAILED);
    unsigned char word = (unsigned char)(rnd() % 16 ? FT_SHM_ACCEPTED + rnd() % 8 : rnd());
    int from = rnd() % 16 ? 1 : 0; /* mostly its own liveness page comes back */
    hand_over(k->socket, &word, 1, fd + from, rnd() % 16 ? 1 : (int)(rnd() % (3 - (uint32_t)from)));
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    turns(50);
    CHECK(k->link->state != FT_LINK_CONNECTING);
}

static void sink_close(struct sink *k)
{
    munmap(k->memory, ft_slots_bytes(CHUNK));
    close(k->socket);
    close(k->listener);
    engine->ops->disconnect(k->link);
}

static void corrupted_returns_are_survived(int rounds)
{
    int before = ft_fd_count();
    uint32_t sent = 0, ended = 0;
    static unsigned char copied[CHUNK];
    static struct ft_send reqs[64];
    void *lent = copied;
    uint32_t loans = 0;
    ft_arena_alloc(ft_max(CHUNK, FT_ARENA_LEAST), &lent);
    struct sink k;
    sink_open(&k);
    struct ft_slots back;
    CHECK(k.link->state == FT_LINK_DOWN || ft_slots_attach(&back, k.memory, CHUNK) == FT_OK);
    for (int i = 0; i < rounds; i++) {
        if (k.link->state == FT_LINK_DOWN || rnd() % 256 == 0) {
            ended++;
            sink_close(&k);
            sink_open(&k);
            if (k.link->state == FT_LINK_UP)
                CHECK(ft_slots_attach(&back, k.memory, CHUNK) == FT_OK);
            continue;
        }
        struct ft_header h = {.ctx = 1 + rnd() % 3,
                              .seq = rnd(),
                              .len = rnd() % (CHUNK + 1),
                              .lane = (uint16_t)(rnd() % FT_LANES_ALL)};
        struct ft_send *req = &reqs[rnd() % 64];
        if (req->status == FT_AGAIN && req->withdraw) { /* still lent */
            if (rnd() % 4 == 0)
                ft_send_withdraw(req);
            continue;
        }
        *req = (struct ft_send){.status = FT_AGAIN, .lasts = rnd() % 4 != 0};
        int rc = k.link->ops->send(k.link, &h, rnd() % 4 ? lent : copied, req);
        loans += rc == FT_OK && req->withdraw;
        CHECK(rc == FT_OK || rc == FT_AGAIN || rc == FT_LINK);
        sent += rc == FT_OK;
        struct ft_slots_return r = {
            .ctx = rnd() % 4, .lane = (uint8_t)(rnd() % 11), .consumed = (uint8_t)(rnd() % 2)};
        if (rnd() % 8 == 0)
            r.slot = (uint8_t)(rnd() % 16 ? rnd() % 97 : rnd());
        if (rnd() % 2)
            ft_slots_give(&back, &r);
        if (rnd() % 32 == 0)
            ((unsigned char *)k.memory)[rnd() % ft_slots_bytes(CHUNK)] = (unsigned char)rnd();
        k.link->ops->drained(k.link);
        turns(1);
    }
    sink_close(&k);
    for (int i = 0; i < 64; i++)
        CHECK(!reqs[i].withdraw); /* none is left behind by its link */
    CHECK(ft_fd_count() == before);
    ft_arena_free(lent);
    printf("%d rounds, %u messages sent, %u of them lent, %u links ended\n", rounds, sent, loans,
           ended);
}

/* The sender finds out when it looks for a place for one more message: that place came back before
 * the nonsense. */
static void broken_links_borrow_nothing(void)
{
    void *lent;
    struct sink k;
    struct ft_slots back;
    struct ft_send req = {.status = FT_AGAIN};
    struct ft_header h = {.ctx = 1, .len = 8};
    if (ft_arena_alloc(ft_max(CHUNK, FT_ARENA_LEAST), &lent) != FT_OK)
        return;
    for (sink_open(&k); k.link->state != FT_LINK_UP; sink_open(&k))
        sink_close(&k);
    CHECK(ft_slots_attach(&back, k.memory, CHUNK) == FT_OK);
    while (k.link->ops->send(k.link, &h, lent, &req) == FT_OK)
        h.seq++;
    ft_slots_give(&back, &(struct ft_slots_return){.ctx = 1, .consumed = 1});
    ft_slots_give(&back, &(struct ft_slots_return){.ctx = 1, .slot = 1});
    h.len = CHUNK;
    req.lasts = true;
    CHECK(k.link->ops->send(k.link, &h, lent, &req) == FT_LINK);
    CHECK(k.link->state == FT_LINK_DOWN && !req.withdraw);
    sink_close(&k);
    ft_arena_free(lent);
}

int main(void)
{
    const char *seed = getenv("FT_SEED"), *n = getenv("FT_ROUNDS");
    ft_env_real()->random(ft_env_real(), &state, sizeof state);
    if (seed)
        state = strtoull(seed, NULL, 0);
    printf("replay: FT_SEED=0x%llx shm_hostile_test\n", (unsigned long long)state);
    fflush(stdout);
    setenv("FTCCL_DEBUG", "VERSION", 1); /* refusals are expected here */
    CHECK(ft_pinned_make(4 * CHUNK, &pinned) == FT_OK);
    ft_arena_base(); /* its descriptors stay */
    int before = ft_fd_count();
    engine = open_engine(1);
    garbage_is_refused();
    bad_offers_are_refused();
    silence_ends();
    corrupted_memory_is_survived(n ? atoi(n) : 5000);
    corrupted_returns_are_survived(n ? atoi(n) : 5000);
    broken_links_borrow_nothing();
    engine->ops->close(engine);
    CHECK(ft_fd_count() == before);
    void *all = ft_pinned_alloc(pinned, 4 * CHUNK); /* no link has kept any */
    CHECK(all);
    ft_pinned_free(pinned, all);
    ft_pinned_close(pinned);
    return 0;
}
