/*
 * Property: a reader of the file sees what the engine recorded, consistent for each record, at any
 * moment. The layout is the documented one. Method: write through the public calls, read the file
 * back with the reader, and compare fields; tear records by hand and by a writer thread; compare
 * offsetof with the tables of docs/telemetry-format.md.
 */
#include "telemetry_fixture.h"

#include <netinet/in.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <map>

extern "C" {
#include "diagnose/diagnose.h"
#include "telemetry/writer.h"
}

namespace
{

struct Field {
    size_t offset, size;
};
using Table = std::map<std::string, Field>;

#define F(type, name)                                \
    {                                                \
#name,                                       \
        {                                            \
            offsetof(type, name), sizeof(type::name) \
        }                                            \
    }
#define V(name)                                                              \
    {                                                                        \
#name,                                                               \
        {                                                                    \
            offsetof(ft_tm_validation, is.name), sizeof(ft_validation::name) \
        }                                                                    \
    }
#define C(name)                                                    \
    {                                                              \
#name,                                                     \
        {                                                          \
            offsetof(ft_tm_clock, is.name), sizeof(ft_clock::name) \
        }                                                          \
    }
const std::map<std::string, Table> &structs()
{
    static const std::map<std::string, Table> all = {
        {"Header",
         {F(ft_tm_header, magic),
          F(ft_tm_header, version),
          F(ft_tm_header, order),
          F(ft_tm_header, header_bytes),
          F(ft_tm_header, file_bytes),
          F(ft_tm_header, comm_offset),
          F(ft_tm_header, comm_rows),
          F(ft_tm_header, comm_row_bytes),
          F(ft_tm_header, op_offset),
          F(ft_tm_header, op_rows),
          F(ft_tm_header, op_row_bytes),
          F(ft_tm_header, link_offset),
          F(ft_tm_header, link_rows),
          F(ft_tm_header, link_row_bytes),
          F(ft_tm_header, pid),
          F(ft_tm_header, pid_start),
          F(ft_tm_header, pid_ns),
          F(ft_tm_header, engine),
          F(ft_tm_header, host),
          F(ft_tm_header, opened_ns),
          F(ft_tm_header, opened_real_ns),
          F(ft_tm_header, ops),
          F(ft_tm_header, lost_comms),
          F(ft_tm_header, lost_links),
          F(ft_tm_header, lost_ops),
          F(ft_tm_header, hostname),
          F(ft_tm_header, program),
          F(ft_tm_header, event_offset),
          F(ft_tm_header, event_rows),
          F(ft_tm_header, event_row_bytes),
          F(ft_tm_header, seat_offset),
          F(ft_tm_header, seat_rows),
          F(ft_tm_header, seat_row_bytes),
          F(ft_tm_header, path_offset),
          F(ft_tm_header, path_rows),
          F(ft_tm_header, path_row_bytes),
          F(ft_tm_header, lost_paths),
          F(ft_tm_header, ask),
          F(ft_tm_header, latency_offset),
          F(ft_tm_header, latency_rows),
          F(ft_tm_header, latency_row_bytes),
          F(ft_tm_header, clock_offset),
          F(ft_tm_header, clock_rows),
          F(ft_tm_header, clock_row_bytes),
          F(ft_tm_header, thread_offset),
          F(ft_tm_header, thread_rows),
          F(ft_tm_header, thread_row_bytes),
          F(ft_tm_header, conn_offset),
          F(ft_tm_header, conn_rows),
          F(ft_tm_header, conn_row_bytes),
          F(ft_tm_header, lost_conns),
          F(ft_tm_header, validation)}},
        {"Request",
         {F(ft_tm_ask, number), F(ft_tm_ask, ctx), F(ft_tm_ask, until_ns), F(ft_tm_ask, pause_ms),
          F(ft_tm_ask, sum)}},
        {"Validation",
         {F(ft_tm_validation, guard), V(number), V(ctx), V(rank), V(state), V(why), V(seq),
          V(held_ns), V(start_ns), V(end_ns), V(copy_ns), V(product_ns), V(check_ns), V(checks),
          V(gpu), V(nlinks), V(links)}},
        {"Communicator row",
         {F(ft_tm_comm, guard),     F(ft_tm_comm, state),     F(ft_tm_comm, ctx),
          F(ft_tm_comm, epoch),     F(ft_tm_comm, nranks),    F(ft_tm_comm, rank),
          F(ft_tm_comm, issued),    F(ft_tm_comm, ended),     F(ft_tm_comm, failed),
          F(ft_tm_comm, last_seq),  F(ft_tm_comm, last_done), F(ft_tm_comm, opened_ns),
          F(ft_tm_comm, closed_ns), F(ft_tm_comm, name),      F(ft_tm_comm, phase),
          F(ft_tm_comm, status),    F(ft_tm_comm, limit_ns),  F(ft_tm_comm, progress_ns),
          F(ft_tm_comm, before),    F(ft_tm_comm, seat),      F(ft_tm_comm, seats),
          F(ft_tm_comm, queued),    F(ft_tm_comm, at_once),   F(ft_tm_comm, begun),
          F(ft_tm_comm, done),      F(ft_tm_comm, call_ns),   F(ft_tm_comm, call_sig),
          F(ft_tm_comm, call_site), F(ft_tm_comm, call_tid),  F(ft_tm_comm, culprit),
          F(ft_tm_comm, marks),     F(ft_tm_comm, step),      F(ft_tm_comm, mark_ns),
          F(ft_tm_comm, agree_ns),  F(ft_tm_comm, agree_call)}},
        {"Operation record",
         {F(ft_tm_op, guard), F(ft_tm_op, id), F(ft_tm_op, serial), F(ft_tm_op, seq),
          F(ft_tm_op, ctx), F(ft_tm_op, count), F(ft_tm_op, wait), F(ft_tm_op, time_ns),
          F(ft_tm_op, status), F(ft_tm_op, root), F(ft_tm_op, comm), F(ft_tm_op, kind),
          F(ft_tm_op, type), F(ft_tm_op, red), F(ft_tm_op, state), F(ft_tm_op, algo)}},
        {"Link row",
         {F(ft_tm_link, peer), F(ft_tm_link, messages), F(ft_tm_link, bytes),
          F(ft_tm_link, transfer_ns), F(ft_tm_link, wait_ns), F(ft_tm_link, peer_rank),
          F(ft_tm_link, state), F(ft_tm_link, sender), F(ft_tm_link, transport)}},
        {"Event",
         {F(ft_tm_event, guard), F(ft_tm_event, what), F(ft_tm_event, from), F(ft_tm_event, to),
          F(ft_tm_event, serial), F(ft_tm_event, time_ns), F(ft_tm_event, id), F(ft_tm_event, rank),
          F(ft_tm_event, status)}},
        {"Seat",
         {F(ft_tm_seat, ctx), F(ft_tm_seat, engine), F(ft_tm_seat, host), F(ft_tm_seat, rank),
          F(ft_tm_seat, excluded)}},
        {"Path",
         {F(ft_tm_path, guard), F(ft_tm_path, state), F(ft_tm_path, link),
          F(ft_tm_path, connections), F(ft_tm_path, peer), F(ft_tm_path, source),
          F(ft_tm_path, destination), F(ft_tm_path, rtt_ns), F(ft_tm_path, least_rtt_ns),
          F(ft_tm_path, now), F(ft_tm_path, before), F(ft_tm_path, flights)}},
        {"Connection",
         {F(ft_tm_conn, guard), F(ft_tm_conn, state), F(ft_tm_conn, index), F(ft_tm_conn, link),
          F(ft_tm_conn, class_index), F(ft_tm_conn, nclasses), F(ft_tm_conn, source),
          F(ft_tm_conn, destination), F(ft_tm_conn, bytes), F(ft_tm_conn, rtt_ns),
          F(ft_tm_conn, ns_per_kib), F(ft_tm_conn, retransmits)}},
        {"Latency",
         {F(ft_tm_latency, peer), F(ft_tm_latency, link), F(ft_tm_latency, state),
          F(ft_tm_latency, part)}},
        {"Clock",
         {F(ft_tm_clock, guard), F(ft_tm_clock, rounds), F(ft_tm_clock, peer), C(offset_ns),
          C(error_ns), C(measured_ns), C(seen_ns)}},
        {"Thread",
         {F(ft_tm_thread, tid), F(ft_tm_thread, call), F(ft_tm_thread, waits),
          F(ft_tm_thread, since_ns), F(ft_tm_thread, site), F(ft_tm_thread, calls)}},
    };
    return all;
}

TEST_F(Telemetry, DocumentedLayoutIsTheStructs)
{
    std::ifstream doc(FT_SRCDIR "/docs/telemetry-format.md");
    ASSERT_TRUE(doc.good());
    std::map<std::string, Table> found;
    std::string line, section;
    while (std::getline(doc, line)) {
        size_t offset, size;
        char name[64];
        if (line.rfind("## ", 0) == 0)
            section = line.substr(3);
        if (structs().count(section) &&
            sscanf(line.c_str(), "| %zu | %zu | %63[a-z_] |", &offset, &size, name) == 3)
            found[section][name] = {offset, size};
    }
    for (const auto &[name, fields] : structs()) {
        EXPECT_EQ(found[name].size(), fields.size()) << name;
        for (const auto &[field, at] : fields) {
            EXPECT_EQ(found[name][field].offset, at.offset) << name << "." << field;
            EXPECT_EQ(found[name][field].size, at.size) << name << "." << field;
        }
    }
    EXPECT_EQ(sizeof(ft_tm_file), 1047040u);
    EXPECT_EQ(offsetof(ft_tm_file, op), 59904u);
    EXPECT_EQ(offsetof(ft_tm_file, link), 584192u);
    EXPECT_EQ(offsetof(ft_tm_file, event), 748032u);
    EXPECT_EQ(offsetof(ft_tm_file, seat), 768512u);
    EXPECT_EQ(offsetof(ft_tm_file, path), 834048u);
    EXPECT_EQ(offsetof(ft_tm_file, latency), 923648u);
    EXPECT_EQ(offsetof(ft_tm_file, clock), 1006080u);
    EXPECT_EQ(offsetof(ft_tm_file, thread), 1018368u);
    EXPECT_EQ(offsetof(ft_tm_file, conn), 1022464u);
}

TEST_F(Telemetry, RoundTrip)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int comm = ft_telemetry_comm_open(t, 0x77, 3, 8, 5, "train");
    struct ft_coll c = coll(1 << 20);
    uint32_t a = ft_telemetry_op(t, comm, 1, &c, "ring", {0, 100});
    ft_telemetry_op_state(t, a, FT_OP_QUEUED, FT_OK, 110);
    ft_telemetry_op_state(t, a, FT_OP_RUNNING, FT_OK, 120);
    ft_telemetry_op_state(t, a, FT_OP_DONE, FT_OK, 150);
    uint32_t b = ft_telemetry_op(t, comm, 2, &c, "a-name-longer-than-the-field-holds", {0, 200});
    ft_telemetry_op_state(t, b, FT_OP_RUNNING, FT_OK, 210);
    ft_telemetry_op_wait(t, b, 42, ft_op_wait(3, true, 4));
    uint32_t d = ft_telemetry_op(t, comm, 3, &c, nullptr, {0, 220});
    ft_telemetry_op_state(t, d, FT_OP_SKIPPED, FT_SKIPPED, 230);
    int link = ft_telemetry_link_open(t, 0x99, 4, "shm", true);
    ft_telemetry_link_count(t, link, 10, 1000, 5000, 600);
    ft_telemetry_link_count(t, link, 12, 1200, 5500, 700);

    Image image = load(ft_telemetry_path(t));
    const ft_tm_file &f = image->file;
    EXPECT_EQ(f.header.engine, 0xabcu);
    EXPECT_EQ(f.header.pid, (uint32_t)getpid());
    EXPECT_EQ(f.header.ops, 3u);
    const ft_tm_comm &row = f.comm[comm];
    EXPECT_EQ(row.state, (uint32_t)FT_TM_OPEN);
    EXPECT_EQ(row.nranks, 8);
    EXPECT_EQ(row.rank, 5);
    EXPECT_EQ(row.issued, 3u);
    EXPECT_EQ(row.ended, 2u);
    EXPECT_EQ(row.failed, 1u);
    EXPECT_EQ(row.last_seq, 3u);
    EXPECT_EQ(row.last_done, 1u);
    EXPECT_STREQ(row.name, "train");
    const ft_tm_op &first = f.op[a % FT_TM_OPS], &second = f.op[b % FT_TM_OPS];
    EXPECT_EQ(first.time_ns[FT_TM_CREATED], 100u);
    EXPECT_EQ(first.time_ns[FT_TM_QUEUED], 110u);
    EXPECT_EQ(first.time_ns[FT_TM_STARTED], 120u);
    EXPECT_EQ(first.time_ns[FT_TM_DRAINING], 0u);
    EXPECT_EQ(first.time_ns[FT_TM_ENDED], 150u);
    EXPECT_EQ(first.state, FT_OP_DONE);
    EXPECT_EQ(first.ctx, 0x77u);
    EXPECT_EQ(second.serial, 2u);
    EXPECT_EQ(second.wait, (uint64_t)42 << 32 | 3u << 25 | 1u << 24 | 5);
    EXPECT_STREQ(second.algo, "a-name-longer-than-the-fi");
    EXPECT_EQ(f.op[d % FT_TM_OPS].status, FT_SKIPPED);
    EXPECT_EQ(f.link[link].messages, 12u);
    EXPECT_EQ(f.link[link].wait_ns, 700u);
    std::string out = text(image.get());
    EXPECT_NE(out.find("RUNNING"), std::string::npos) << out;
    EXPECT_NE(out.find("at step 42, sending to rank 4"), std::string::npos) << out;
    ft_telemetry_close(t);
}

/* A rank acts once on a request that is whole, for it, and in time; a tool reads what it then
 * tells.
 */
TEST_F(Telemetry, ARequestIsTakenOnce)
{
    struct ft_telemetry *t = open(), *other = open();
    ASSERT_NE(t, nullptr);
    ASSERT_NE(other, nullptr);
    struct ft_ask ask = {77, 0x123, ft_now_ns(ft_env_real()) + 1000000000u * 60, 500}, got = {};
    EXPECT_FALSE(ft_telemetry_asked(t, &got));
    ASSERT_EQ(ft_validation_ask(ft_telemetry_path(t), &ask), FT_OK) << ft_fail_text();
    struct ft_tm_file *file = t->file;
    file->header.ask.ctx ^= 1;
    EXPECT_FALSE(ft_telemetry_asked(t, &got)) << "another communicator";
    file->header.ask.ctx ^= 1;
    other->file->header.engine ^= 1;
    other->file->header.ask = file->header.ask;
    EXPECT_FALSE(ft_telemetry_asked(other, &got)) << "a request to another rank";
    EXPECT_TRUE(ft_telemetry_asked(t, &got));
    EXPECT_EQ(got.number, 77u);
    EXPECT_EQ(got.ctx, 0x123u);
    EXPECT_EQ(got.pause_ms, 500u);
    EXPECT_FALSE(ft_telemetry_asked(t, &got)) << "taken before";
    ask = {78, 0x123, 1, 500};
    ASSERT_EQ(ft_validation_ask(ft_telemetry_path(t), &ask), FT_OK);
    EXPECT_FALSE(ft_telemetry_asked(t, &got)) << "its time is over";

    struct ft_validation is = {}, read = {};
    is.number = 77;
    is.nlinks = 1000;
    is.links[15].ns = 5;
    ft_telemetry_validation(t, &is);
    ASSERT_EQ(ft_validation_read(ft_telemetry_path(t), &read), FT_OK) << ft_fail_text();
    EXPECT_EQ(read.number, 77u);
    EXPECT_EQ(read.nlinks, FT_MEASURED_MOST);
    EXPECT_EQ(read.links[15].ns, 5u);
    file->header.validation.guard |= 1;
    EXPECT_EQ(ft_validation_read(ft_telemetry_path(t), &read), FT_SYSTEM) << "a torn row";
    file->header.pid_start ^= 1; /* this process is another one with that pid */
    ASSERT_EQ(ft_validation_read(ft_telemetry_path(t), &read), FT_OK) << ft_fail_text();
    EXPECT_EQ(read.state, FT_VALIDATION_GIVEN_UP);
    EXPECT_EQ(read.why, FT_WHY_GONE);
    file->header.validation.guard++;
    file->header.validation.is.state = FT_VALIDATION_DONE;
    ASSERT_EQ(ft_validation_read(ft_telemetry_path(t), &read), FT_OK) << ft_fail_text();
    EXPECT_EQ(read.state, FT_VALIDATION_DONE) << "what a rank has told before it died";
    file->header.pid_start ^= 1;
    ASSERT_EQ(ft_validation_read("/dev/shm/ftccl-0-0-nothing", &read), FT_OK);
    EXPECT_EQ(read.why, FT_WHY_GONE);
    EXPECT_EQ(ft_validation_read("/dev/null", &read), FT_INVAL);
    EXPECT_EQ(ft_validation_ask("/nonexistent", &ask), FT_SYSTEM);
    ft_telemetry_close(other);
    ft_telemetry_close(t);
}

/* A path has the sums of now and of 5 to 15 s ago, so their difference is about the present; when
 * the table is full, the rest are counted. Method: one look a second at a link whose sums grow. */
TEST_F(Telemetry, PathsKeepTwoMoments)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int link = ft_telemetry_link_open(t, 0x99, 4, "tcp", true);
    int row = ft_telemetry_path_open(t, link);
    const uint64_t second = 1000000000;
    for (uint64_t i = 1; i <= 40; i++) {
        ft_link_path path = {};
        path.source = {AF_INET, 4711, 0, {127, 0, 0, 1}};
        path.destination = {AF_INET6, 99, 0, {0xfe, 0x80}};
        path.connections = 2;
        path.network_ns = 3 * i;
        path.retransmits = i;
        ft_telemetry_link_count(t, link, i, 1000 * i, 0, 7 * i);
        ft_telemetry_path_count(t, row, &path, i * second);
        Image image = load(ft_telemetry_path(t));
        const ft_tm_path &p = image->file.path[row];
        uint64_t apart = p.now.time_ns - p.before.time_ns;
        EXPECT_EQ(p.now.time_ns, i * second);
        EXPECT_GE(apart, i > 5 ? 5 * second : 0) << i;
        EXPECT_LE(apart, 15 * second) << i;
        EXPECT_EQ((p.now.network_ns - p.before.network_ns) * second, 3 * apart) << i;
        EXPECT_EQ((p.now.bytes - p.before.bytes) * second, 1000 * apart) << i;
        EXPECT_EQ((p.now.credit_ns - p.before.credit_ns) * second, 7 * apart) << i;
    }
    Image image = load(ft_telemetry_path(t));
    std::string out = text(image.get());
    EXPECT_NE(out.find("127.0.0.1:4711 -> [fe80::]:99, 2, "), std::string::npos) << out;
    ft_telemetry_path_close(t, row);
    for (int i = 0; i < FT_TM_PATHS; i++)
        EXPECT_GE(ft_telemetry_path_open(t, link), 0) << i;
    EXPECT_EQ(ft_telemetry_path_open(t, link), -1);
    image = load(ft_telemetry_path(t));
    EXPECT_EQ(image->file.header.lost_paths, 1u);
    ft_telemetry_close(t);
}

/* The connections of a link have rows that follow each other; closed ones are used again, and
 * without enough rows none is taken. */
TEST_F(Telemetry, Connections)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int link = ft_telemetry_link_open(t, 0x99, 6, "tcp", true);
    int first = ft_telemetry_conns_open(t, link, 2);
    ASSERT_GE(first, 0);
    ft_link_conn conn = {};
    conn.source = {AF_INET, 61005, 0, {10, 0, 0, 1}};
    conn.destination = {AF_INET6, 99, 0, {0xfe, 0x80}};
    conn.class_index = 2;
    conn.nclasses = 4;
    conn.bytes = 1234567;
    conn.ns_per_kib = 1024;
    conn.retransmits = 3;
    ft_telemetry_conn(t, first + 1, &conn);
    Image image = load(ft_telemetry_path(t));
    const ft_tm_conn &row = image->file.conn[first + 1];
    EXPECT_EQ(row.state, FT_TM_OPEN);
    EXPECT_EQ(row.index, 1u);
    EXPECT_EQ(row.link, (uint32_t)link);
    EXPECT_EQ(row.class_index, 2);
    EXPECT_EQ(row.source.port, 61005u);
    EXPECT_EQ(row.bytes, 1234567u);
    std::string seen = text(image.get());
    EXPECT_NE(seen.find("to rank 6: 10.0.0.1:61005 -> [fe80::]:99, class 2 of 4, 1234567 bytes, "
                        "1000.0 MB/s, 0.000 ms, 3"),
              std::string::npos)
        << seen;
    int second = ft_telemetry_conns_open(t, link, FT_TM_CONNS - 2);
    EXPECT_EQ(second, first + 2);
    EXPECT_EQ(ft_telemetry_conns_open(t, link, 2), -1) << "the table is full";
    ft_telemetry_conns_close(t, first, 2);
    EXPECT_EQ(ft_telemetry_conns_open(t, link, 3), -1) << "only two are free";
    EXPECT_EQ(ft_telemetry_conns_open(t, link, 2), first);
    image = load(ft_telemetry_path(t));
    EXPECT_EQ(image->file.header.lost_conns, 5u);
    EXPECT_EQ(image->file.conn[first + 1].bytes, 0u) << "of the link before";
    ft_telemetry_close(t);
}

/* The snapshot has the lengths of the last steps, oldest first, also when the ring of marks has
 * gone round, and the paths of open links only. */
TEST_F(Telemetry, StepsAndPathsComeIntoTheSnapshot)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int comm = ft_telemetry_comm_open(t, 0x77, 1, 3, 1, "a");
    int link = ft_telemetry_link_open(t, 0x99, 4, "tcp", true);
    ft_link_path path = {};
    for (int i = 0; i < 3; i++)
        ft_telemetry_path_count(t, ft_telemetry_path_open(t, link), &path, 5);
    ft_telemetry_path_close(t, 1);
    clock_ns = 0;
    for (uint64_t i = 0; i < 100; i++) {
        ft_snapshot *s = nullptr;
        if (i < 3 || i == 31 || i == 32 || i == 33 || i == 99) {
            ASSERT_EQ(ft_snapshot_collect(dir.c_str(), &s), FT_OK);
            EXPECT_EQ(s->npaths, 2);
            int want = static_cast<int>(std::min<uint64_t>(i ? i - 1 : 0, FT_TM_STEPS - 2));
            EXPECT_EQ(s->nsteps, want) << i;
            for (int k = 0; k < s->nsteps; k++) {
                EXPECT_EQ(s->steps[k].number, i - 1 - static_cast<uint64_t>(want - k)) << i;
                EXPECT_EQ(s->steps[k].end_ns - s->steps[k].begin_ns, s->steps[k].number + 1);
                EXPECT_EQ(s->steps[k].member, 0);
            }
            ft_snapshot_free(s);
        }
        clock_ns += i;
        ft_telemetry_step(t, comm, 1000 + i);
    }
    ft_telemetry_close(t);
}

/* A call that waits in a queue is counted when it is made, one that begins at once when it starts;
 * the latest queued one is kept with its place. The roster names the members, also of a second
 * communicator. */
TEST_F(Telemetry, CallsAndRosterAreRecorded)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    struct ft_coll c = coll(4);
    int first = ft_telemetry_comm_open(t, 0x77, 1, 3, 1, "a"),
        second = ft_telemetry_comm_open(t, 0x78, 1, 2, 0, "b");
    for (int r = 0; r < 2; r++)
        ft_telemetry_seat(t, second, r, 0x200u + (unsigned)r, 9);
    ft_telemetry_comm_limits(t, first, 5000, 40);
    ft_telemetry_comm_state(t, first, FT_COMM_FAILED, FT_TIMEOUT, 2);
    ft_telemetry_comm_progress(t, first, 99);
    struct ft_called made = {FT_ALLREDUCE, 0xabcd, 70, &made, 4711};
    ft_telemetry_call(t, first, &made);
    made.now_ns = 80;
    ft_telemetry_call(t, first, &made);
    ft_telemetry_op(t, first, 1, &c, "x", {70, 90});
    uint32_t at_once = ft_telemetry_op(t, first, 2, &c, "x", {0, 95});
    ft_telemetry_op_state(t, at_once, FT_OP_RUNNING, FT_OK, 95);
    ft_telemetry_op_state(t, at_once, FT_OP_DONE, FT_OK, 96);
    Image image = load(ft_telemetry_path(t));
    const ft_tm_comm &a = image->file.comm[first], &b = image->file.comm[second];
    EXPECT_EQ(a.queued[FT_ALLREDUCE], 2u);
    EXPECT_EQ(a.begun[FT_ALLREDUCE], 1u);
    EXPECT_EQ(a.at_once[FT_ALLREDUCE], 1u);
    EXPECT_EQ(a.done[FT_ALLREDUCE], 1u);
    EXPECT_EQ(a.call_ns, 80u);
    EXPECT_EQ(a.call_sig, 0xabcdu);
    EXPECT_EQ(a.call_site, (uint64_t)(uintptr_t)&made);
    EXPECT_EQ(a.call_tid, 4711);
    EXPECT_EQ(a.limit_ns, 5000u);
    EXPECT_EQ(a.before, 40u);
    EXPECT_EQ(a.phase, (uint32_t)FT_COMM_FAILED);
    EXPECT_EQ(a.status, FT_TIMEOUT);
    EXPECT_EQ(a.culprit, 2);
    EXPECT_EQ(a.progress_ns, 99u);
    EXPECT_EQ(a.seats, 0u);
    EXPECT_EQ(image->file.op[0].time_ns[FT_TM_CREATED], 70u);
    EXPECT_EQ(b.seats, 2u);
    for (int r = 0; r < 2; r++) {
        const ft_tm_seat &seat = image->file.seat[b.seat + (unsigned)r];
        EXPECT_EQ(seat.ctx, 0x78u);
        EXPECT_EQ(seat.engine, 0x200u + (unsigned)r);
        EXPECT_EQ(seat.host, 9u);
        EXPECT_EQ(seat.rank, r);
    }
    ft_telemetry_close(t);
}

/* A roster that does not fit behind the last one begins at the start of the table; one of more than
 * half of it is left out. */
TEST_F(Telemetry, RostersStayInOnePiece)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    const int sizes[] = {FT_TM_SEATS / 2, FT_TM_SEATS / 2 - 3, 5, FT_TM_SEATS / 2 + 1};
    std::vector<int> rows;
    for (int n : sizes) {
        rows.push_back(ft_telemetry_comm_open(t, 0x100u + rows.size(), 1, n, 0, ""));
        for (int r = 0; r < n; r++)
            ft_telemetry_seat(t, rows.back(), r, (unsigned)r, 1);
    }
    Image image = load(ft_telemetry_path(t));
    const ft_tm_file &f = image->file;
    EXPECT_EQ(f.comm[rows[2]].seat, 0u);
    EXPECT_EQ(f.comm[rows[2]].seats, 5u);
    EXPECT_EQ(f.comm[rows[3]].seats, 0u);
    for (unsigned r = 0; r < 5; r++)
        EXPECT_EQ(f.seat[r].ctx, 0x102u) << r;
    EXPECT_EQ(f.seat[5].ctx, 0x100u);
    ft_telemetry_close(t);
}

/* The ring wraps: the oldest records go, a handle of an overwritten record touches nothing, a
 * running one stays. */
TEST_F(Telemetry, RingWrapsAroundRunningOperations)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int comm = ft_telemetry_comm_open(t, 1, 1, 2, 0, "");
    struct ft_coll c = coll(1);
    uint32_t old = ft_telemetry_op(t, comm, 1, &c, "x", {0, 1});
    uint32_t stuck = ft_telemetry_op(t, comm, 2, &c, "x", {0, 1});
    ft_telemetry_op_state(t, stuck, FT_OP_RUNNING, FT_OK, 1);
    const uint64_t last = 3 * FT_TM_OPS + 7;
    for (uint64_t seq = 3; seq <= last; seq++)
        ft_telemetry_op(t, comm, seq, &c, "x", {0, seq});
    ft_telemetry_op_state(t, old, FT_OP_FAILED, FT_PEER, 9);
    ft_telemetry_op_wait(t, stuck, 6, ft_op_wait(0, false, 1));
    Image image = load(ft_telemetry_path(t));
    std::map<uint64_t, const ft_tm_op *> seen;
    for (const ft_tm_op &r : image->file.op) {
        EXPECT_NE(r.state, FT_OP_FAILED) << r.seq;
        seen[r.seq] = &r;
    }
    EXPECT_EQ(seen.size(), (size_t)FT_TM_OPS);
    ASSERT_EQ(seen.count(2), 1u);
    EXPECT_EQ(seen[2]->wait, (uint64_t)6 << 32 | 2);
    EXPECT_EQ(seen.rbegin()->first, last);
    EXPECT_EQ(std::next(seen.begin())->first, last - FT_TM_OPS + 2);
    EXPECT_EQ(image->file.comm[comm].failed, 0u);
    ft_telemetry_close(t);
}

TEST_F(Telemetry, FullTablesAreCountedAndRowsReused)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    for (int i = 0; i < FT_TM_COMMS; i++)
        EXPECT_EQ(ft_telemetry_comm_open(t, i + 1, 1, 2, 0, "c"), i);
    EXPECT_EQ(ft_telemetry_comm_open(t, 100, 1, 2, 0, "c"), -1);
    struct ft_coll c = coll(1);
    uint32_t lost = ft_telemetry_op(t, -1, 1, &c, "x", {0, 1});
    ft_telemetry_op_state(t, lost, FT_OP_DONE, FT_OK, 1);
    ft_telemetry_comm_close(t, 7);
    EXPECT_EQ(ft_telemetry_comm_open(t, 101, 1, 2, 0, "c"), 7);
    for (int i = 0; i < FT_TM_LINKS; i++)
        EXPECT_EQ(ft_telemetry_link_open(t, i, i, "tcp", i % 2), i);
    EXPECT_EQ(ft_telemetry_link_open(t, 1, 1, "tcp", true), -1);
    ft_telemetry_link_close(t, 12);
    EXPECT_EQ(ft_telemetry_link_open(t, 5, 5, "tcp", true), 12);
    Image image = load(ft_telemetry_path(t));
    EXPECT_EQ(image->file.header.lost_comms, 1u);
    EXPECT_EQ(image->file.header.lost_ops, 1u);
    EXPECT_EQ(image->file.header.lost_links, 1u);
    EXPECT_EQ(image->file.header.ops, 0u);
    EXPECT_EQ(image->file.comm[7].ctx, 101u);
    ft_telemetry_close(t);
}

/* The ring keeps the latest events; the text names their states. */
TEST_F(Telemetry, EventsAreKeptInOrder)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    for (int i = 0; i < FT_TM_EVENTS; i++)
        ft_telemetry_event(t, FT_MOVED_PEER, 7, i, FT_PEER_OPEN, FT_PEER_LOST, FT_OK);
    ft_telemetry_event(t, FT_MOVED_PEER, 0x1234, 3, FT_PEER_LOST, FT_PEER_DEAD, FT_OK);
    ft_telemetry_event(t, FT_MOVED_COMM, 0x77, 2, FT_COMM_OPEN, FT_COMM_FAILED, FT_LINK);
    Image image = load(ft_telemetry_path(t));
    EXPECT_EQ(image->file.event[0].serial, FT_TM_EVENTS + 1u);
    EXPECT_EQ(image->file.event[1].serial, FT_TM_EVENTS + 2u);
    EXPECT_EQ(image->file.event[1].status, FT_LINK);
    EXPECT_EQ(image->file.event[2].serial, 3u);
    EXPECT_EQ(image->file.event[2].rank, 2);
    std::string said = text(image.get());
    size_t dead = said.find("rank 3 (engine 0000000000001234): lost -> dead"),
           failed = said.find("communicator 0000000000000077: open -> failed (");
    EXPECT_NE(dead, std::string::npos) << said;
    EXPECT_NE(failed, std::string::npos) << said;
    EXPECT_LT(dead, failed);
    ft_telemetry_close(t);
}

TEST_F(Telemetry, EveryCallAcceptsNoFile)
{
    struct ft_coll c = coll(1);
    EXPECT_EQ(ft_telemetry_comm_open(nullptr, 1, 1, 1, 0, "x"), -1);
    ft_telemetry_comm_close(nullptr, 0);
    uint32_t op = ft_telemetry_op(nullptr, 0, 1, &c, "x", {0, 1});
    ft_telemetry_op_state(nullptr, op, FT_OP_DONE, FT_OK, 1);
    ft_telemetry_op_wait(nullptr, op, 1, ft_op_wait(0, false, 1));
    EXPECT_EQ(ft_telemetry_link_open(nullptr, 1, 1, "x", true), -1);
    ft_telemetry_link_count(nullptr, 0, 1, 1, 1, 1);
    ft_telemetry_link_close(nullptr, 0);
    ft_telemetry_event(nullptr, FT_MOVED_PEER, 1, 1, 0, 1, FT_OK);
    ft_telemetry_close(nullptr);
}

/* A writer that stopped inside a record leaves its guard odd: the reader ends, says so, and trusts
 * the other records. */
TEST_F(Telemetry, RecordLeftInsideAWriteIsTold)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    int comm = ft_telemetry_comm_open(t, 1, 1, 2, 0, "");
    struct ft_coll c = coll(1);
    uint32_t a = ft_telemetry_op(t, comm, 1, &c, "x", {0, 1}),
             b = ft_telemetry_op(t, comm, 2, &c, "x", {0, 1});
    int fd = ::open(ft_telemetry_path(t), O_RDWR);
    uint32_t guard = 3;
    off_t at = (off_t)(offsetof(ft_tm_file, op) + a % FT_TM_OPS * sizeof(ft_tm_op));
    ASSERT_EQ(pwrite(fd, &guard, sizeof guard, at), (ssize_t)sizeof guard);
    close(fd);
    Image image = load(ft_telemetry_path(t));
    EXPECT_EQ(image->op_torn[a % FT_TM_OPS], 1);
    EXPECT_EQ(image->op_torn[b % FT_TM_OPS], 0);
    EXPECT_NE(text(image.get()).find("caught inside a write"), std::string::npos);
    ft_telemetry_close(t);
}

/* While a child writes without pause, every record that the reader calls whole has fields of one
 * moment: the writer keeps seq, count and the time of creation equal. */
TEST_F(Telemetry, RecordsReadDuringWritesAreWhole)
{
    int pipe_fd[2];
    ASSERT_EQ(pipe(pipe_fd), 0);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct ft_telemetry *t = open();
        int comm = t ? ft_telemetry_comm_open(t, 1, 1, 2, 0, "") : -1;
        if (write(pipe_fd[1], "x", 1) != 1)
            _exit(1);
        for (uint64_t seq = 1;; seq++) {
            struct ft_coll c = coll(seq);
            uint32_t op = ft_telemetry_op(t, comm, seq, &c, "x", {0, seq});
            ft_telemetry_op_state(t, op, FT_OP_DONE, -(int)(seq & 0xffff), seq);
        }
    }
    struct Reaper { /* however the test ends */
        pid_t pid;
        ~Reaper()
        {
            kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
        }
    } reaper{child};
    char byte;
    close(pipe_fd[1]);
    ASSERT_EQ(read(pipe_fd[0], &byte, 1), 1);
    close(pipe_fd[0]);
    ASSERT_EQ(files().size(), 1u);
    size_t whole = 0, torn = 0;
    for (int round = 0; round < 60; round++) {
        Image image = load(dir + "/" + files()[0]);
        for (int i = 0; i < FT_TM_OPS; i++) {
            const ft_tm_op &r = image->file.op[i];
            torn += image->op_torn[i];
            if (r.serial == 0 || image->op_torn[i])
                continue;
            whole++;
            ASSERT_EQ(r.count, r.seq) << "row " << i;
            ASSERT_EQ(r.time_ns[FT_TM_CREATED], r.seq) << "row " << i;
            ASSERT_EQ(r.serial, r.seq) << "row " << i;
            if (r.state == FT_OP_DONE) {
                ASSERT_EQ(r.time_ns[FT_TM_ENDED], r.seq) << "row " << i;
                ASSERT_EQ(-r.status, (int)(r.seq & 0xffff)) << "row " << i;
            }
        }
    }
    EXPECT_GT(whole, 60u * FT_TM_OPS / 4) << torn << " torn";
}

} // namespace
