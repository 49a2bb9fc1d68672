/*
 * Property: a member that could not open a view does not keep the processes of that view: who is in
 * no later view, and has ended, is forgotten. Method: members as threads with a coordinator in this
 * process; the first communicator of one of them fails. The peers of its engine are counted.
 */
#include <cstring>
#include <thread>
#include <vector>

#include "tests/unit/managed_helpers.h"

extern "C" {
#include "core/group/group.h"
#include "core/group/member.h"

static thread_local bool fails;         /* the next one that this thread opens */
static thread_local ft_engine *watched; /* whose it was */

int __real_ft_init_open(ft_engine *, const ft_opening *, ft_comm **);
int __wrap_ft_init_open(ft_engine *, const ft_opening *, ft_comm **);
int __wrap_ft_init_open(ft_engine *engine, const ft_opening *opening, ft_comm **out)
{
    if (fails) {
        fails = false;
        watched = engine;
        return ft_fail(FT_NOMEM, "no memory in this test");
    }
    return __real_ft_init_open(engine, opening, out);
}
}

namespace
{

using managed::await;

struct One {
    ft_member *member = nullptr;
    ft_comm *comm = nullptr;

    One(const std::string &coordinator, const std::string &replica)
    {
        ft_member_config config = {};
        config.address[config.naddresses++] = managed::address_of(coordinator);
        memset(config.secret, 7, sizeof config.secret);
        snprintf(config.role.group, sizeof config.role.group, "job");
        snprintf(config.role.replica, sizeof config.role.replica, "%s", replica.c_str());
        config.role.local_size = 1;
        config.min_members = 2;
        config.window_ms = 60000;
        config.name = "test";
        config.settings.limits.op_timeout_ms = config.settings.limits.init_timeout_ms = 60000;
        config.settings.limits.suspect_ms = 20000;
        config.settings.limits.heartbeat_ms = 100;
        config.settings.limits.min_ranks = 1;
        config.settings.transports = "tcp";
        EXPECT_EQ(ft_member_open(&config, &member), FT_OK) << ft_fail_text();
    }
    ~One()
    {
        ft_member_release(member);
        if (comm)
            ft_comm_close(comm);
        ft_member_close(member);
    }
    int view(uint64_t step)
    {
        const ft_managed_view *view;
        ft_comm *last = comm;
        const int rc = ft_member_view(member, step, &view, &comm);
        if (rc == FT_OK && last && last != comm)
            ft_comm_close(last);
        return rc;
    }
};

int count_peers(ft_engine *engine)
{
    int n = 0;
    ft_engine_lock(engine);
    for (const ft_peer *peer = engine->roster; peer; peer = peer->next_known)
        n++;
    ft_engine_unlock(engine);
    return n;
}

TEST(Unopened, WhoIsInNoLaterViewIsForgotten)
{
    unsigned char key[FT_SECRET_BYTES], secret[FT_SECRET_BYTES];
    memset(secret, 7, sizeof secret);
    ft_auth_derive(key, secret, "daemons", 0);
    managed::Coordinator coordinator("127.0.0.1:0", managed::Key(key, key + sizeof key));
    One stays(coordinator.at, "a"), other(coordinator.at, "c");
    {
        One goes(coordinator.at, "b");
        std::thread one([&] { EXPECT_EQ(goes.view(0), FT_OK) << ft_fail_text(); });
        std::thread two([&] { EXPECT_EQ(other.view(0), FT_OK) << ft_fail_text(); });
        fails = true;
        EXPECT_EQ(stays.view(0), FT_NOMEM);
        one.join(), two.join();
    }
    ASSERT_NE(watched, nullptr);
    std::thread two([&] { EXPECT_EQ(other.view(0), FT_OK) << ft_fail_text(); });
    EXPECT_EQ(stays.view(0), FT_OK) << ft_fail_text();
    two.join();
    EXPECT_TRUE(await([] { return count_peers(watched) == 1; }, 20))
        << count_peers(watched) << " peers, of which one is in the view";
}

} // namespace
