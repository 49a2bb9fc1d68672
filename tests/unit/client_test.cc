// Property: members that register with a coordinator get one view, over real sockets; they find the
// coordinator again after its end, or another one; every call ends at its time limit; and nothing
// is left behind. Method: coordinators and members as threads of this process, with made-up
// endpoints. Windows are far longer than a test takes, so that a view comes because everybody is
// there.
#include "tests/unit/managed_fake.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <set>

using namespace managed;
using talk::operator+;

namespace
{

class ClientTest : public Clean
{
};

Options at(const Coordinator &coordinator)
{
    Options options;
    options.at = {coordinator.at};
    return options;
}

TEST_F(ClientTest, AllGetOneView)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.min_members = 8;
    Members members = members_of(options, 8);
    std::vector<Answer> answers = views_of(members, {5});
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, answers, 8));
    for (const Answer &answer : answers) {
        EXPECT_EQ(5u, answer.view->step);
        EXPECT_FALSE(answer.view->same);
        EXPECT_FALSE(answer.view->behind);
        EXPECT_EQ(8, answer.view->nhealthy);
        EXPECT_EQ(1, answer.view->local_size);
        EXPECT_EQ(0, answer.view->local_rank);
        EXPECT_EQ(answer.view->peer[answer.view->rank].engine, answer.view->local[0].engine);
    }
    // what they listened for is what they got
    for (size_t i = 0; i < members.size(); i++)
        EXPECT_EQ(answers[i].number(), members[i]->binds().back());
}

TEST_F(ClientTest, ReplicasOfSeveralRanks)
{
    Coordinator coordinator;
    Members members;
    for (unsigned i = 0; i < 6; i++) {
        Options options = at(coordinator);
        options.engine = i + 1;
        options.role = role_of(std::string(1, static_cast<char>('a' + i / 2)), i % 2, 2);
        options.min_members = 3;
        members.push_back(std::make_unique<Member>(options));
    }
    std::vector<Answer> answers = views_of(members);
    std::set<Number> numbers;
    for (unsigned i = 0; i < 6; i++) {
        ASSERT_EQ(FT_OK, answers[i].status) << answers[i].text;
        const ft_managed_view &view = *answers[i].view;
        numbers.insert(answers[i].number());
        ASSERT_EQ(3, view.nranks);
        ASSERT_EQ(2, view.local_size);
        EXPECT_EQ(static_cast<int>(i % 2), view.local_rank);
        for (int local = 0; local < 2; local++)
            EXPECT_EQ(i / 2 * 2 + static_cast<unsigned>(local) + 1, view.local[local].engine);
        for (int rank = 0; rank < 3; rank++)
            EXPECT_EQ(i % 2, (view.peer[rank].engine - 1) % 2) << "of another local rank";
    }
    EXPECT_EQ(1u, numbers.size());
}

TEST_F(ClientTest, TheSameViewComesAgain)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.min_members = 3;
    Members members = members_of(options, 3);
    std::vector<Answer> first = views_of(members, {1});
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, first, 3));
    for (uint64_t step = 2; step < 30; step++) {
        std::vector<Answer> next = views_of(members, {step});
        ASSERT_NO_FATAL_FAILURE(expect_one_view(members, next, 3));
        EXPECT_EQ(first[0].number(), next[0].number());
        for (const Answer &answer : next) {
            EXPECT_TRUE(answer.view->same);
            EXPECT_EQ(step, answer.view->step);
        }
    }
    Answer failed[3];
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; i++)
        threads.emplace_back([&, i] { failed[i] = members[i]->view({30, i == 1}); });
    for (std::thread &thread : threads)
        thread.join();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, {failed[0], failed[1], failed[2]}, 3));
    EXPECT_EQ(first[0].view->epoch + 1, failed[0].view->epoch);
    EXPECT_FALSE(failed[0].view->same);
}

TEST_F(ClientTest, ThoseWhoAreBehindHaveSources)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.min_members = 3;
    Members members = members_of(options, 3);
    Answer answer[3];
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; i++)
        threads.emplace_back([&, i] { answer[i] = members[i]->view({i == 1 ? 4u : 9u}); });
    for (std::thread &thread : threads)
        thread.join();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, {answer[0], answer[1], answer[2]}, 3));
    EXPECT_TRUE(answer[1].view->behind);
    EXPECT_EQ(9u, answer[1].view->step);
    EXPECT_EQ(2, answer[1].view->nhealthy);
    ASSERT_EQ(2, answer[1].view->nsources);
    for (int i = 0; i < 2; i++)
        EXPECT_NE(answer[1].view->rank, answer[1].view->sources[i]);
}

// The window is long: the others get a view because they know at once that one has gone.
TEST_F(ClientTest, WhoGoesIsNotWaitedFor)
{
    Coordinator coordinator;
    Members members = members_of(at(coordinator), 5);
    for (const auto &member : members)
        ASSERT_EQ(FT_OK, member->accepted().status);
    std::vector<Answer> first = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, first, 5));
    members[1]->close(true);
    std::vector<Answer> second = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, second, 4));
    members[3]->close(false);
    std::vector<Answer> third = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, third, 3));
    std::vector<uint64_t> order = first[0].engines(); // in which they came
    for (uint64_t gone : {2, 4})
        order.erase(std::find(order.begin(), order.end(), gone));
    EXPECT_EQ(order, third[0].engines());
    EXPECT_EQ(first[0].view->term, third[0].view->term);
    EXPECT_EQ(first[0].view->epoch + 2, third[0].view->epoch);
    for (size_t i : {0, 2, 4})
        EXPECT_TRUE(members[i]->broken().empty()) << "its own links tell it";
}

TEST_F(ClientTest, WhoComesIsInTheNextView)
{
    Coordinator coordinator;
    Members members = members_of(at(coordinator), 2);
    for (const auto &member : members)
        ASSERT_EQ(FT_OK, member->accepted().status);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 2));
    for (int more = 0; more < 3; more++) {
        Options options = at(coordinator);
        options.engine = 10 + static_cast<uint64_t>(more);
        options.role = role_of("new" + std::to_string(more));
        members.push_back(std::make_unique<Member>(options));
        Answer answer;
        std::thread newcomer([&] { answer = members.back()->view(); });
        std::vector<Answer> answers(members.size());
        std::vector<std::thread> threads;
        // those who were there ask until the newcomer is in
        for (size_t i = 0; i + 1 < members.size(); i++)
            threads.emplace_back([&, i] {
                do
                    answers[i] = members[i]->view();
                while (answers[i].status == FT_OK &&
                       answers[i].view->nranks < static_cast<int>(members.size()));
            });
        for (std::thread &thread : threads)
            thread.join();
        newcomer.join();
        answers.back() = answer;
        ASSERT_NO_FATAL_FAILURE(expect_one_view(members, answers, 3 + more));
    }
}

// ---- coordinators that end --------------------------------------------------------------------

TEST_F(ClientTest, TheCoordinatorStartsAgain)
{
    auto coordinator = std::make_unique<Coordinator>();
    std::string where = coordinator->at;
    Options options = at(*coordinator);
    options.min_members = 4;
    Members members = members_of(options, 4);
    std::vector<Answer> first = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, first, 4));
    for (int round = 0; round < 3; round++) {
        coordinator.reset();
        coordinator = std::make_unique<Coordinator>(where);
        ASSERT_EQ(where, coordinator->at);
        std::vector<Answer> next = views_of(members, {static_cast<uint64_t>(round)});
        ASSERT_NO_FATAL_FAILURE(expect_one_view(members, next, 4));
        EXPECT_NE(first[0].view->term, next[0].view->term);
        EXPECT_LT(first[0].view->epoch, next[0].view->epoch);
        EXPECT_EQ(first[0].engines(), next[0].engines()) << "they keep their ranks";
        first = next;
    }
    for (const auto &member : members)
        EXPECT_TRUE(member->broken().empty()) << "all were still there";
}

// A caller that waits does not notice that the coordinator is another one.
TEST_F(ClientTest, TheCoordinatorStartsAgainWhileTheyWait)
{
    auto coordinator = std::make_unique<Coordinator>();
    std::string where = coordinator->at;
    Options options = at(*coordinator);
    options.min_members = 3;
    Members members = members_of(options, 3);
    std::vector<Answer> answers(3);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; i++)
        threads.emplace_back([&, i] { answers[i] = members[i]->view(); });
    for (size_t i = 0; i < 2; i++)
        ASSERT_TRUE(await([&] { return !members[i]->binds().empty(); }));
    Number before = members[0]->binds()[0];
    coordinator.reset();
    coordinator = std::make_unique<Coordinator>(where);
    threads.emplace_back([&] { answers[2] = members[2]->view(); });
    for (std::thread &thread : threads)
        thread.join();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, answers, 3));
    EXPECT_NE(before.first, answers[0].view->term);
    EXPECT_EQ(answers[0].number(), members[0]->binds().back());
}

TEST_F(ClientTest, TheNextAddressIsUsed)
{
    Nobody nobody, deaf(true);
    Coordinator coordinator;
    Options options = at(coordinator);
    options.at = {nobody.at, deaf.at, coordinator.at};
    options.min_members = 3;
    options.suspect_ms = 400;
    Members members = members_of(options, 3);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, views_of(members), 3));
}

TEST_F(ClientTest, AnotherCoordinatorTakesOver)
{
    auto first = std::make_unique<Coordinator>();
    Coordinator second;
    Options options;
    options.at = {first->at, second.at};
    options.min_members = 3;
    Members members = members_of(options, 3);
    std::vector<Answer> before = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, before, 3));
    first.reset();
    std::vector<Answer> after = views_of(members);
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, after, 3));
    EXPECT_NE(before[0].view->term, after[0].view->term);
    EXPECT_LT(before[0].view->epoch, after[0].view->epoch);
}

// ---- what does not work is told in time -------------------------------------------------------

TEST_F(ClientTest, NobodyIsThere)
{
    Nobody first, second;
    Options options;
    options.at = {first.at, second.at};
    Member member(options);
    Answer answer;
    auto says = [&](const std::string &what) {
        return answer.text.find(what) != std::string::npos;
    };
    EXPECT_TRUE(await([&] {
        answer = member.accepted(0.2);
        EXPECT_EQ(FT_TIMEOUT, answer.status);
        return says(first.at + ": cannot connect: Connection refused") &&
               says(second.at + ": cannot connect: Connection refused");
    })) << answer.text;
    answer = member.view({0, false, {}, 0.1});
    EXPECT_EQ(FT_TIMEOUT, answer.status);
    EXPECT_NE(std::string::npos, answer.text.find("no coordinator could be reached"))
        << answer.text;
}

TEST_F(ClientTest, AnotherSecret)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.key = key_of(2);
    Member member(options);
    Answer answer = member.accepted();
    EXPECT_EQ(FT_AUTH, answer.status) << answer.text;
    EXPECT_NE(std::string::npos, answer.text.find("secret")) << answer.text;
    EXPECT_EQ(FT_AUTH, member.view().status);
}

TEST_F(ClientTest, TimeLimits)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.min_members = 2;
    Member member(options);
    ASSERT_EQ(FT_OK, member.accepted().status);
    Answer answer = member.view({0, false, {}, 0.5});
    EXPECT_EQ(FT_TIMEOUT, answer.status);
    EXPECT_NE(std::string::npos, answer.text.find("there was no view of group 'job'"))
        << answer.text;
    EXPECT_EQ(FT_TIMEOUT, member.view({0, false, {}, 0}).status);

    atomic_int cancel(0);
    std::thread canceller([&] {
        await([&] { return member.binds().size() >= 2; });
        cancel.store(1);
    });
    answer = member.view({0, false, {}, 600, &cancel});
    canceller.join();
    EXPECT_EQ(FT_ABORTED, answer.status);
    EXPECT_EQ(FT_OK, member.accepted(0, &cancel).status) << "it is, whatever the flag says";
}

TEST_F(ClientTest, WhatBindReturnsIsReturned)
{
    Coordinator coordinator;
    Member member(at(coordinator));
    member.bind_status = FT_NOMEM;
    Answer answer = member.view();
    EXPECT_EQ(FT_NOMEM, answer.status);
    EXPECT_EQ("the test wants it so", answer.text);
    member.bind_status = FT_OK;
    EXPECT_EQ(FT_OK, member.view().status);
}

// ---- roles ------------------------------------------------------------------------------------

TEST_F(ClientTest, ARoleThatAnotherHas)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    Member first(options);
    ASSERT_EQ(FT_OK, first.accepted().status);
    options.engine = 2;
    Member second(options);
    Answer answer;
    EXPECT_TRUE(await([&] {
        answer = second.accepted(0.2);
        return answer.status == FT_USAGE;
    })) << answer.text;
    EXPECT_NE(std::string::npos, answer.text.find("held by another process")) << answer.text;
    first.close(true);
    answer = second.accepted();
    EXPECT_EQ(FT_OK, answer.status) << answer.text;
    EXPECT_EQ(FT_OK, second.view().status);
}

TEST_F(ClientTest, RolesThatMakeNoSense)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    Member first(options);
    ASSERT_EQ(FT_OK, first.accepted().status);
    options.engine = 2;
    options.role = role_of("b", 1, 2);
    Member second(options);
    Answer answer = second.accepted();
    EXPECT_EQ(FT_USAGE, answer.status) << "the other replica has one rank";
    EXPECT_EQ(FT_USAGE, second.view().status);

    ft_client_config config = {};
    ft_client *client = nullptr;
    EXPECT_EQ(FT_INVAL, ft_client_open(&config, &client)) << "it has no address";
    config.naddresses = 1;
    EXPECT_EQ(FT_INVAL, ft_client_open(&config, &client)) << "it has no group";
    config.role = role_of("a", 3, 3);
    EXPECT_EQ(FT_INVAL, ft_client_open(&config, &client)) << "there is no such rank";
}

TEST_F(ClientTest, AStandbyTakesOver)
{
    Coordinator coordinator;
    Members members;
    for (unsigned i = 0; i < 4; i++) {
        Options options = at(coordinator);
        options.engine = i + 1;
        options.role = role_of(i < 2 ? "a" : "b", i % 2, 2);
        options.min_members = 2;
        members.push_back(std::make_unique<Member>(options));
    }
    Options options = at(coordinator);
    options.engine = 9;
    options.role = role_of("", 0, 0);
    options.min_members = 2;
    Member standby(options);
    ASSERT_EQ(FT_OK, standby.accepted().status);
    EXPECT_EQ("", standby.replica());
    Answer none = standby.view({0, false, {}, 0.2});
    EXPECT_EQ(FT_TIMEOUT, none.status);
    EXPECT_NE(std::string::npos, none.text.find("was not needed")) << none.text;
    std::vector<Answer> before = views_of(members);
    for (const Answer &answer : before)
        ASSERT_EQ(FT_OK, answer.status) << answer.text;

    members[1]->close(false);
    std::vector<Answer> after(4);
    std::vector<std::thread> threads;
    for (size_t i : {0, 2, 3})
        threads.emplace_back([&, i] { after[i] = members[i]->view({3}); });
    Answer taken = standby.view();
    for (std::thread &thread : threads)
        thread.join();
    ASSERT_EQ(FT_OK, taken.status) << taken.text;
    EXPECT_EQ("a", standby.replica());
    EXPECT_EQ(2, taken.view->nranks);
    EXPECT_EQ(1, taken.view->local_rank);
    EXPECT_EQ(1u, taken.view->local[0].engine);
    EXPECT_EQ(9u, taken.view->local[1].engine);
    EXPECT_TRUE(taken.view->behind);
    EXPECT_EQ(3u, taken.view->step);
    ASSERT_EQ(FT_OK, after[0].status) << after[0].text;
    EXPECT_EQ(taken.number(), after[0].number());
    EXPECT_EQ(9u, after[0].view->local[1].engine);
}

// It neither ends nor says anything.
TEST_F(ClientTest, WhoIsSilentBreaksTheView)
{
    Coordinator coordinator;
    Options options = at(coordinator);
    options.min_members = 3;
    Members members = members_of(options, 2);
    for (const auto &member : members)
        ASSERT_EQ(FT_OK, member->accepted().status);
    Hand hand;
    talk::Message message;
    ASSERT_TRUE(hand.connect_to(coordinator.at));
    Number last = hand.join(role_of("silent"), 77, 1000);
    ASSERT_NE(0u, last.first);
    ASSERT_TRUE(hand.tell(FT_MEMBERS_ASK, Hand::ask_of(last)));
    std::atomic<bool> done(false);
    std::thread beats([&] {
        for (; !done; poll(nullptr, 0, 20))
            hand.tell(FT_MEMBERS_BEAT);
    });
    std::vector<Answer> answers = views_of(members);
    done = true;
    beats.join();
    ASSERT_NO_FATAL_FAILURE(expect_one_view(members, answers, 3));
    ASSERT_TRUE(hand.hear_type(FT_MEMBERS_VIEW, message));
    for (const auto &member : members) {
        ASSERT_TRUE(await([&] { return !member->broken().empty(); }));
        EXPECT_EQ(answers[0].number(), member->broken()[0]);
    }
    EXPECT_TRUE(hand.await_end());
}

// ---- what a coordinator may say ---------------------------------------------------------------

// What comes then is what the caller gets next: the others have begun to use it.
TEST_F(ClientTest, AViewAfterTheTimeLimit)
{
    Played played;
    played.ask_in_vain();
    played.fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 11));
    Answer answer = played.member->view({8});
    ASSERT_EQ(FT_OK, answer.status) << answer.text;
    EXPECT_EQ(Number(5, 11), answer.number());
    for (const Number &number : played.member->binds())
        EXPECT_EQ(Number(5, 11), number);
}

// The list that a member makes of many changes is that of a model.
TEST_F(ClientTest, Changes)
{
    const char *given = getenv("FT_TEST_SEED");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : std::random_device()();
    SCOPED_TRACE("repeat with FT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    Played played;
    std::vector<uint64_t> engines = {4, 1, 6};
    Answer answer = played.give(view_of(engines, 1, 11), 10);
    ASSERT_EQ(FT_OK, answer.status) << answer.text;
    uint64_t next = 100;
    for (uint64_t epoch = 12; epoch < 112; epoch++) {
        Change change = {epoch - 1, {}, {}};
        std::vector<uint64_t> model;
        for (unsigned i = 0; i < engines.size(); i++) {
            if (engines[i] != 1 && random() % 4 == 0)
                change.gone.push_back(i);
            else
                model.push_back(engines[i]);
        }
        for (unsigned more = random() % 4; more > 0; more--)
            model.insert(model.begin() + random() % (model.size() + 1), next++);
        unsigned rank = 0;
        for (unsigned i = 0; i < model.size(); i++) {
            if (std::find(engines.begin(), engines.end(), model[i]) == engines.end())
                change.added.push_back(i);
            rank = model[i] == 1 ? i : rank;
        }
        engines = model;
        std::thread asker([&] { answer = played.member->view(); });
        EXPECT_TRUE(played.fake.hear(FT_MEMBERS_ASK));
        played.fake.tell(FT_MEMBERS_VIEW, view_of(engines, rank, epoch, change));
        asker.join();
        ASSERT_EQ(FT_OK, answer.status) << answer.text;
        ASSERT_EQ(engines, answer.engines());
        ASSERT_EQ(static_cast<int>(rank), answer.view->rank);
    }
}

// What a coordinator sends when a connection breaks may be lost. So it is told what has come.
TEST_F(ClientTest, SaysHowOftenItsViewHasCome)
{
    Played played;
    Fake &fake = played.fake;
    Answer answer = played.give(view_of({1, 6}, 0, 12), 11);
    for (uint32_t times = 1; times < 4; times++) {
        EXPECT_EQ(FT_OK, answer.status) << answer.text;
        fake.talk.end();
        ASSERT_TRUE(fake.take(played.join));
        EXPECT_EQ(12u, played.join.held_epoch);
        EXPECT_EQ(times, played.join.held_times);
        fake.tell_joined(role_of("a"), 5, 12);
        std::thread asker([&] { answer = played.member->view(); });
        EXPECT_TRUE(fake.hear(FT_MEMBERS_ASK));
        fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 12, {12, {}, {}}));
        asker.join();
    }
    EXPECT_TRUE(answer.view->same);
}

// A change that does not fit what the member has ends the connection. Then it asks for all of it.
TEST_F(ClientTest, AChangeThatDoesNotFit)
{
    struct {
        const char *what;
        talk::Bytes bytes;
    } wrong[] = {
        {"another base", view_of({1, 6, 9}, 0, 13, {11, {}, {}})},
        {"another view of the base's number", view_of({1, 6, 8}, 0, 12)},
        {"one gone that never was", view_of({1, 6}, 0, 13, {12, {3}, {}})},
        {"one gone twice", view_of({1, 6}, 0, 13, {12, {2, 2}, {1}})},
        {"this member gone", view_of({6, 9}, 0, 13, {12, {0}, {}})},
        {"more than are left", view_of({1, 6, 9, 4}, 0, 13, {12, {}, {}})},
        {"fewer than are left", view_of({1, 6}, 0, 13, {12, {}, {}})},
        {"one added twice", view_of({1, 6, 9, 4, 5}, 0, 13, {12, {}, {3, 3}})},
        {"this member elsewhere", view_of({1, 6, 9}, 1, 13, {12, {}, {}})},
        {"all of it without this member", view_of({2, 3, 4}, 0, 13)},
        {"epoch 0", view_of({1, 6}, 0, 0)},
    };
    for (auto &one : wrong) {
        SCOPED_TRACE(one.what);
        Played played;
        Fake &fake = played.fake;
        Answer answer = played.give(view_of({1, 6, 9}, 0, 12), 11);
        EXPECT_EQ(FT_OK, answer.status) << answer.text;
        std::thread asker([&] { answer = played.member->view(); });
        EXPECT_TRUE(fake.hear(FT_MEMBERS_ASK));
        fake.tell(FT_MEMBERS_VIEW, one.bytes);
        EXPECT_TRUE(fake.await_end());
        EXPECT_TRUE(fake.take(played.join));
        EXPECT_EQ(0u, played.join.held_nranks) << "it has nothing that a change could be made to";
        EXPECT_EQ(12u, played.join.held_epoch) << "but it knows of it";
        fake.tell_joined(role_of("a"), 5, 12);
        EXPECT_TRUE(fake.hear(FT_MEMBERS_ASK));
        fake.tell(FT_MEMBERS_VIEW, view_of({1, 9}, 0, 13));
        asker.join();
        EXPECT_EQ(FT_OK, answer.status) << answer.text;
        EXPECT_EQ((std::vector<uint64_t>{1, 9}), answer.engines());
    }
}

TEST_F(ClientTest, MessagesThatMakeNoSense)
{
    talk::Bytes eight = talk::number(5, 8) + talk::number(10, 8);
    struct {
        const char *what;
        unsigned type;
        talk::Bytes bytes;
    } wrong[] = {
        {"an unknown type", 77, {}},
        {"an unknown slot", FT_MEMBERS_EPOCH, talk::number(1, 4) + eight},
        {"a short EPOCH", FT_MEMBERS_EPOCH, talk::number(0, 4)},
        {"an empty VIEW", FT_MEMBERS_VIEW, {}},
        {"a VIEW of zeros", FT_MEMBERS_VIEW, talk::Bytes(200)},
        {"JOINED without a role", FT_MEMBERS_JOINED, talk::number(0, 4) + eight},
        {"REFUSED with success", FT_MEMBERS_REFUSED, talk::number(0, 4) + talk::number(0, 4)},
        {"REFUSED with no status", FT_MEMBERS_REFUSED, talk::number(0, 4) + talk::number(7, 4)},
        {"a short BROKEN", FT_MEMBERS_BROKEN, talk::number(0, 4)},
        {"a short WAITS", FT_MEMBERS_WAITS, {}},
        {"ALIVE with bytes", FT_MEMBERS_ALIVE, {1}},
        {"what only members say", FT_MEMBERS_BEAT, {}},
    };
    for (auto &one : wrong) {
        SCOPED_TRACE(one.what);
        Played another;
        Answer answer;
        std::thread asker([&] { answer = another.member->view(); });
        EXPECT_TRUE(another.fake.take(another.join));
        another.fake.tell_joined(role_of("a"), 5, 10);
        EXPECT_TRUE(another.fake.hear(FT_MEMBERS_ASK));
        another.fake.tell(one.type, one.bytes);
        EXPECT_TRUE(another.fake.await_end());
        EXPECT_TRUE(another.fake.take(another.join)) << "it registers again";
        another.fake.tell_joined(role_of("a"), 5, 10);
        EXPECT_TRUE(another.fake.hear(FT_MEMBERS_ASK));
        another.fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 11));
        asker.join();
        EXPECT_EQ(FT_OK, answer.status) << answer.text;
    }
}

TEST_F(ClientTest, MessagesThatMakeNoSenseNow)
{
    Played played;
    Fake &fake = played.fake;
    Answer answer;
    std::thread asker([&] { answer = played.member->view(); });
    ft_role others[] = {role_of("b"), role_of("a", 0, 2), role_of("")};
    for (const ft_role &other : others) {
        ASSERT_TRUE(fake.take(played.join));
        fake.tell_joined(other, 5, 10);
        EXPECT_TRUE(fake.await_end()) << "it has another role";
    }
    ASSERT_TRUE(fake.take(played.join));
    EXPECT_TRUE(fake.talk.say_raw(talk::number(UINT32_MAX, 4) +
                                  talk::number(FT_MEMBERS_SERVICE, 2) +
                                  talk::number(FT_MEMBERS_VIEW, 2)));
    EXPECT_TRUE(fake.await_end()) << "a message that is too long";
    ASSERT_TRUE(fake.take(played.join));
    EXPECT_TRUE(fake.talk.say(FT_MEMBERS_ALIVE, {}, 2));
    EXPECT_TRUE(fake.await_end()) << "another service";

    ASSERT_TRUE(fake.take(played.join));
    fake.tell_joined(role_of("a"), 5, 10);
    ASSERT_TRUE(fake.hear(FT_MEMBERS_ASK));
    // it has asked with that epoch: the answer to an earlier ask is none to this one
    fake.tell(FT_MEMBERS_EPOCH, talk::number(0, 4) + talk::number(5, 8) + talk::number(10, 8));
    fake.tell(FT_MEMBERS_EPOCH, talk::number(0, 4) + talk::number(5, 8) + talk::number(12, 8));
    ASSERT_TRUE(fake.hear(FT_MEMBERS_ASK)) << "it asks again";
    EXPECT_EQ(Number(5, 13), played.member->binds().back());
    const char refusal[] = "no\nway\x1b[2J";
    talk::Bytes sentence(refusal, refusal + sizeof refusal - 1);
    fake.tell(FT_MEMBERS_REFUSED,
              talk::number(0, 4) + talk::number(static_cast<uint32_t>(FT_FENCED), 4) + sentence);
    asker.join();
    EXPECT_EQ(FT_FENCED, answer.status);
    EXPECT_EQ("no way [2J", answer.text);
    EXPECT_EQ(FT_FENCED, played.member->accepted().status);
}

// Messages that were right before some of their bytes changed: what a caller gets is a view with
// this member in it, or none.
TEST_F(ClientTest, DamagedMessages)
{
    const char *given = getenv("FT_TEST_SEED");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : std::random_device()();
    SCOPED_TRACE("repeat with FT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const talk::Bytes number = talk::number(0, 4) + talk::number(5, 8) + talk::number(11, 8);
    const std::pair<unsigned, talk::Bytes> right[] = {
        {FT_MEMBERS_VIEW, view_of({1, 6, 9}, 0, 11)},
        {FT_MEMBERS_VIEW, view_of({1, 9, 8}, 0, 12, {11, {1}, {2}})},
        {FT_MEMBERS_BROKEN, number + talk::Bytes{'x', 'y'}},
        {FT_MEMBERS_EPOCH, number},
        {FT_MEMBERS_WAITS, talk::number(0, 4) + talk::Bytes(40, 'w')},
        {FT_MEMBERS_ALIVE, {}},
    };
    for (int round = 0; round < 60; round++) {
        Played played;
        atomic_int cancel(0);
        EXPECT_TRUE(played.fake.take(played.join));
        played.fake.tell_joined(role_of("a"), 5, 10);
        std::thread asker([&] {
            Answer answer;
            do {
                answer = played.member->view({0, false, {}, 60, &cancel});
                EXPECT_EQ(1u, answer.view ? answer.view->peer[answer.view->rank].engine : 1u);
            } while (answer.status == FT_OK);
        });
        EXPECT_TRUE(played.fake.hear(FT_MEMBERS_ASK));
        for (int message = 0; message < 20; message++) {
            auto [type, bytes] = right[message == 0 ? 0 : random() % std::size(right)];
            for (unsigned change = random() % 3; change > 0 && !bytes.empty(); change--)
                bytes[random() %
                      (random() % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 90))] =
                    static_cast<unsigned char>(random());
            if (random() % 8 == 0)
                bytes.resize(random() % (bytes.size() + 20));
            (void)played.fake.talk.say(type, bytes, FT_MEMBERS_SERVICE);
        }
        played.fake.talk.end();
        cancel = 1;
        asker.join();
    }
}

// BROKEN is passed on once for a view, and one that the caller has not got yet is not given any
// more.
TEST_F(ClientTest, BrokenBeforeItWasTaken)
{
    Played played;
    Fake &fake = played.fake;
    Answer answer;
    played.ask_in_vain();
    fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 11));
    talk::Bytes broken = talk::number(0, 4) + talk::number(5, 8) + talk::number(11, 8);
    fake.tell(FT_MEMBERS_BROKEN, broken);
    fake.tell(FT_MEMBERS_BROKEN, broken);
    ASSERT_TRUE(await([&] { return !played.member->broken().empty(); }));
    std::thread asker([&] { answer = played.member->view({8}); });
    ft_members_ask ask = played.hear_ask(8);
    EXPECT_TRUE(ask.failed) << "the last view is out of reach";
    EXPECT_EQ(11u, ask.epoch);
    fake.tell(FT_MEMBERS_VIEW, view_of({1, 6}, 0, 12));
    asker.join();
    ASSERT_EQ(FT_OK, answer.status) << answer.text;
    EXPECT_EQ(12u, answer.view->epoch);
    EXPECT_EQ(1u, played.member->broken().size());
}

// An answer is asked for when the coordinator has said nothing for a part of the time that it may
// be silent, and not before; in the rest of that time each heartbeat asks. Method: heartbeats are
// counted, 50 of which go into that time. A member that gets no processor counts a heartbeat for
// it.
TEST_F(ClientTest, OnlyAfterSilenceHeartbeatsAskForAnswers)
{
    Fake fake;
    Options options;
    options.at = {fake.at};
    options.heartbeat_ms = 40;
    options.suspect_ms = 2000;
    Member member(options);
    ft_members_join join;
    ASSERT_TRUE(fake.take(join));
    fake.tell_joined(role_of("a"), 5, 10);
    int quiet = 0, asked = 0;
    const auto count_until = [&](auto over) {
        return await([&] {
            while (!over() && fake.talk.hear(fake.message)) {
                quiet += fake.message.type == FT_MEMBERS_QUIET_BEAT;
                asked += fake.message.type == FT_MEMBERS_BEAT;
            }
            return over() || fake.talk.ended || fake.talk.fd < 0;
        });
    };
    const talk::Bytes waits = talk::number(0, 4) + talk::Bytes{'w'};
    for (int round = 0; round < 3; round++) {
        quiet = asked = 0;
        ASSERT_TRUE(count_until([&] { return asked > 0; }));
        EXPECT_EQ(1, asked);
        EXPECT_LE(10, quiet) << "round " << round;
        EXPECT_GE(20, quiet) << "round " << round;
        // whatever it says is an answer
        if (round == 1)
            fake.tell(FT_MEMBERS_WAITS, waits);
        else
            fake.tell(FT_MEMBERS_ALIVE);
        ASSERT_TRUE(count_until([&] { return fake.message.type == FT_MEMBERS_QUIET_BEAT; }));
    }
    quiet = asked = 0;
    ASSERT_TRUE(count_until([&] { return asked > 0; }));
    quiet = 0;
    ASSERT_TRUE(count_until([] { return false; }));
    EXPECT_EQ(0, quiet) << "it asks until it is answered";
    EXPECT_LE(20, asked) << "there was time for an answer";
    EXPECT_GE(36, asked) << "it is left in time";
    EXPECT_TRUE(fake.take(join)) << "it registers again";
}

// A coordinator that says nothing more is left.
TEST_F(ClientTest, ASilentCoordinatorIsLeft)
{
    Fake fake;
    Coordinator coordinator;
    Options options;
    options.at = {fake.at, coordinator.at};
    options.suspect_ms = 500;
    options.window_ms = 100; // for those who have the view of which the other one told
    Member member(options);
    ft_members_join join;
    ASSERT_TRUE(fake.take(join));
    fake.tell_joined(role_of("a"), 5, 10);
    ASSERT_EQ(FT_OK, member.accepted().status);
    Answer answer = member.view();
    ASSERT_EQ(FT_OK, answer.status) << answer.text;
    EXPECT_NE(5u, answer.view->term);
    EXPECT_TRUE(fake.await_end());
}

} // namespace
