// Property: coordinators and members that are stopped, killed or forked behave as ones that are
// lost or silent, and a member that comes back learns what has become of its role. Method: this
// program runs itself as a coordinator or a member, and sends it SIGSTOP, SIGCONT and SIGKILL.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <iostream>

#include "tests/unit/managed_fake.h"

using namespace managed;

namespace
{

// This program as another process, with a pipe to it and one from it.
class Process
{
  public:
    pid_t pid = -1;

    explicit Process(std::vector<std::string> arguments)
    {
        int to[2], from[2];
        EXPECT_EQ(0, pipe2(to, O_CLOEXEC));
        EXPECT_EQ(0, pipe2(from, O_CLOEXEC));
        std::vector<char *> argv = {const_cast<char *>("/proc/self/exe")};
        for (std::string &argument : arguments)
            argv.push_back(argument.data());
        argv.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], 0);
        posix_spawn_file_actions_adddup2(&actions, from[1], 1);
        EXPECT_EQ(0, posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ));
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        input = to[1];
        output = from[0];
    }
    Process(const Process &) = delete;
    ~Process()
    {
        if (pid > 0) {
            kill(pid, SIGKILL);
            kill(pid, SIGCONT);
            waitpid(pid, nullptr, 0);
        }
        close(input);
        close(output);
    }
    std::string read_line()
    {
        std::string line;
        pollfd ready = {output, POLLIN, 0};
        for (char byte; poll(&ready, 1, 60000) == 1 && read(output, &byte, 1) == 1;) {
            if (byte == '\n')
                return line;
            line += byte;
        }
        return line + " (it said no more)";
    }
    void go_on() const
    {
        EXPECT_EQ(1, write(input, "\n", 1));
    }
    void stop() const
    {
        int status;
        kill(pid, SIGSTOP);
        EXPECT_EQ(pid, waitpid(pid, &status, WUNTRACED));
        EXPECT_TRUE(WIFSTOPPED(status));
    }

  private:
    int input, output;
};

class CoordProcessTest : public Clean
{
};

Options patient(const std::vector<std::string> &at, unsigned min_members)
{
    Options options;
    options.at = at;
    options.min_members = min_members;
    options.heartbeat_ms = 100;
    options.suspect_ms = 1000;
    return options;
}

TEST_F(CoordProcessTest, AStoppedCoordinatorIsLeft)
{
    Process first({"--coordinator"});
    Coordinator second;
    Members members = members_of(patient({first.read_line(), second.at}, 3), 3);
    std::vector<Answer> before = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, before, 3));
    first.stop();
    std::vector<Answer> after = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, after, 3));
    EXPECT_NE(before[0].view->term, after[0].view->term);
    EXPECT_EQ(before[0].engines(), after[0].engines());
    kill(first.pid, SIGCONT);
    std::vector<Answer> later = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, later, 3));
    EXPECT_EQ(after[0].number(), later[0].number()) << "nobody goes back";
}

TEST_F(CoordProcessTest, AKilledCoordinatorIsLeft)
{
    auto first = std::make_unique<Process>(std::vector<std::string>{"--coordinator"});
    Coordinator second;
    Members members = members_of(patient({first->read_line(), second.at}, 3), 3);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
    first.reset();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
}

// Its members leave it, and find it again when it goes on.
TEST_F(CoordProcessTest, AStoppedCoordinatorComesBack)
{
    Process only({"--coordinator"});
    Members members = members_of(patient({only.read_line()}, 3), 3);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
    only.stop();
    for (const auto &member : members)
        EXPECT_TRUE(await([&] { return member->accepted(0).status == FT_TIMEOUT; }));
    Answer answer = members[0]->view({0, false, {}, 0.2});
    EXPECT_EQ(FT_TIMEOUT, answer.status);
    EXPECT_NE(std::string::npos, answer.text.find("no coordinator could be reached"))
        << answer.text;
    kill(only.pid, SIGCONT);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
}

// The time in which a member was stopped is no silence of its coordinator.
TEST_F(CoordProcessTest, AStoppedMemberDoesNotBlameTheCoordinator)
{
    Fake fake;
    ft_members_join join;
    Process process({"--member", fake.at, "a", "1", "2000"});
    ASSERT_TRUE(fake.take(join));
    fake.tell_joined(role_of("a"), 5, 10);
    EXPECT_EQ("accepted", process.read_line());
    process.stop();
    for (double end_s = now_s() + 4; now_s() < end_s;)
        poll(nullptr, 0, 100);
    kill(process.pid, SIGCONT);
    process.go_on();
    ASSERT_TRUE(fake.hear(FT_MEMBERS_ASK)) << "on the same connection";
    fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 11));
    EXPECT_EQ("view of 2", process.read_line());
}

// Members go on with one that was killed as soon as the kernel has closed its connection.
TEST_F(CoordProcessTest, AKilledMemberIsGone)
{
    Coordinator coordinator;
    Options options = patient({coordinator.at}, 2);
    options.suspect_ms = 60000;
    auto third = std::make_unique<Process>(
        std::vector<std::string>{"--member", coordinator.at, "c", "77", "60000"});
    EXPECT_EQ("accepted", third->read_line());
    Members members = members_of(options, 2);
    for (const auto &member : members)
        ASSERT_EQ(FT_OK, member->accepted().status);
    third->go_on();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
    EXPECT_EQ("view of 3", third->read_line());
    third.reset();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 2));
}

// It is stopped for so long that the others go on without it.
void stop_member(bool replaced)
{
    Coordinator coordinator;
    Process third({"--member", coordinator.at, "c", "77", "1000"});
    EXPECT_EQ("accepted", third.read_line());
    Members members = members_of(patient({coordinator.at}, 2), 2);
    for (const auto &member : members)
        ASSERT_EQ(FT_OK, member->accepted().status);
    third.go_on();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
    EXPECT_EQ("view of 3", third.read_line());
    third.stop();
    for (const auto &member : members)
        ASSERT_TRUE(await([&] { return !member->broken().empty(); }));
    Ask failed;
    failed.failed = true;
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members, failed), 2));
    if (replaced) {
        Options options = patient({coordinator.at}, 2);
        options.engine = 88;
        options.role = role_of("c");
        members.push_back(std::make_unique<Member>(options));
        ASSERT_EQ(FT_OK, members.back()->accepted().status);
    }
    kill(third.pid, SIGCONT);
    third.go_on();
    std::vector<Answer> answers(members.size());
    std::vector<std::thread> callers;
    for (size_t i = 0; i < members.size(); i++)
        callers.emplace_back([&, i] {
            do
                answers[i] = members[i]->view();
            while (answers[i].status == FT_OK && answers[i].view->nranks < 3);
        });
    for (std::thread &caller : callers)
        caller.join();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, answers, 3));
    EXPECT_EQ(replaced ? "status " + std::to_string(FT_FENCED) : "view of 3", third.read_line());
}

TEST_F(CoordProcessTest, AStoppedMemberComesBack)
{
    stop_member(false);
}

TEST_F(CoordProcessTest, AStoppedMemberFindsItsRoleTaken)
{
    stop_member(true);
}

int check_child(ft_coordinator *coordinator, Member &member)
{
    ft_role role;
    ft_managed_view *view = nullptr;
    ft_view_ask want = {};
    char text[FT_NET_TEXT_BYTES];
    Key key = key_of();
    ft_coordinator *another = nullptr;
    want.timeout_ns = 1000000000;
    if (ft_client_view(member.client, &want, &view) != FT_FORKED)
        return 1;
    if (ft_client_accepted(member.client, 1000000000, nullptr) != FT_FORKED)
        return 2;
    if (ft_coordinator_start("127.0.0.1:0", key.data(), text, &another) != FT_FORKED)
        return 3;
    ft_client_role(member.client, &role);
    if (strcmp(role.replica, "a") != 0)
        return 4;
    ft_client_close(member.client, true);
    ft_coordinator_stop(coordinator);
    return ft_fd_count() == 0 ? 0 : 5;
}

TEST_F(CoordProcessTest, AChildOfForkHasNothing)
{
    Coordinator coordinator;
    Member member(patient({coordinator.at}, 1));
    ASSERT_EQ(FT_OK, member.view().status);
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_child(coordinator.coordinator, member));
    int status = 0;
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(0, WEXITSTATUS(status)) << "the number of the check in the child";
    EXPECT_EQ(FT_OK, member.view().status);
}

// At the end of main() a coordinator and a member still run.
TEST_F(CoordProcessTest, TheProcessEndsFirst)
{
    Process process({"--leave"});
    EXPECT_EQ("view of 1", process.read_line());
    int status = 0;
    ASSERT_EQ(process.pid, waitpid(process.pid, &status, 0));
    process.pid = -1;
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(0, WEXITSTATUS(status));
}

void say(const std::string &line)
{
    std::cout << line << std::endl;
}

void await_line()
{
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n')
        ;
}

void say_view(Member &member)
{
    Answer answer = member.view();
    say(answer.status == FT_OK ? "view of " + std::to_string(answer.view->nranks)
                               : "status " + std::to_string(answer.status));
}

int be_coordinator()
{
    Coordinator coordinator;
    say(coordinator.at);
    await_line();
    return 0;
}

// Each line from the other side makes it ask for a view.
int be_member(char **argv)
{
    Options options = patient({argv[0]}, 2);
    options.role = role_of(argv[1]);
    options.engine = static_cast<uint64_t>(atoi(argv[2]));
    options.suspect_ms = static_cast<unsigned>(atoi(argv[3]));
    Member member(options);
    Answer answer = member.accepted();
    say(answer.status == FT_OK ? "accepted" : answer.text);
    for (;;) {
        await_line();
        say_view(member);
    }
}

int leave_all()
{
    static auto *coordinator = new Coordinator; // a checker of leaks finds them
    static auto *member = new Member(patient({coordinator->at}, 1));
    say_view(*member);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    std::string what = argc > 1 ? argv[1] : "";
    if (what == "--coordinator")
        return be_coordinator();
    if (what == "--member" && argc == 6)
        return be_member(argv + 2);
    if (what == "--leave")
        return leave_all();
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
