// What FTCCL's perf programs measure, with Gloo over TCP. usage: gloo_perf COLLECTIVE -t RANKS
// [OPTION]..., see peer.h. The program starts its ranks itself; they meet by a file store in a
// temporary folder and talk over 127.0.0.1. Options objects with the buffers are made once for a
// size. Gloo's reduce-scatter exists for whole objects only, and works in place.
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace
{

struct State {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::function<void()> call; // the collective on the buffers that were prepared
};

State &state(struct peer_library *l)
{
    return *static_cast<State *>(l->state);
}

template <typename Options>
std::shared_ptr<Options> with_buffers(State &s, const struct peer_call *c, size_t sent)
{
    auto options = std::make_shared<Options>(s.context);
    options->setInput(c->send, sent);
    options->setOutput(c->recv, c->total);
    return options;
}

void sum_floats(void *out, const void *a, const void *b, size_t n)
{
    gloo::sum<float>(out, a, b, n);
}

int prepare_all_reduce(State &s, const struct peer_call *c)
{
    auto options = with_buffers<gloo::AllreduceOptions>(s, c, c->total);
    options->setReduceFunction(sum_floats);
    s.call = [options] { gloo::allreduce(*options); };
    return PEER_OK;
}

int prepare_reduce_scatter(State &s, const struct peer_call *c)
{
    auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        s.context, std::vector<float *>{c->send}, int(c->total),
        std::vector<int>(size_t(s.context->size), int(c->count)));
    float *from = c->send, *to = c->recv;
    size_t bytes = c->count * sizeof(float);
    s.call = [algorithm, from, to, bytes] {
        algorithm->run();
        memcpy(to, from, bytes);
    };
    return PEER_OK;
}

int prepare(struct peer_library *l, const struct peer_call *c)
try {
    State &s = state(l);
    if (c->kind == PEER_ALL_REDUCE)
        return prepare_all_reduce(s, c);
    if (c->kind == PEER_REDUCE_SCATTER)
        return prepare_reduce_scatter(s, c);
    if (c->kind == PEER_ALL_GATHER) {
        auto options = with_buffers<gloo::AllgatherOptions>(s, c, c->count);
        s.call = [options] { gloo::allgather(*options); };
    } else if (c->kind == PEER_ALLTOALL) {
        auto options = with_buffers<gloo::AlltoallOptions>(s, c, c->total);
        s.call = [options] { gloo::alltoall(*options); };
    } else if (c->kind == PEER_REDUCE) {
        auto options = with_buffers<gloo::ReduceOptions>(s, c, c->total);
        options->setReduceFunction(sum_floats);
        options->setRoot(0);
        s.call = [options] { gloo::reduce(*options); };
    } else {
        auto options = std::make_shared<gloo::BroadcastOptions>(s.context);
        options->setOutput(c->recv, c->total);
        options->setRoot(0);
        s.call = [options] { gloo::broadcast(*options); };
    }
    return PEER_OK;
} catch (const std::exception &error) {
    fprintf(stderr, "Gloo: %s\n", error.what());
    return PEER_LACKS;
}

void run(struct peer_library *l, const struct peer_call *)
{
    state(l).call();
}

void meet(struct peer_library *l)
{
    gloo::BarrierOptions options(state(l).context);
    gloo::barrier(options);
}

double sum(struct peer_library *l, double value)
{
    gloo::AllreduceOptions options(state(l).context);
    options.setOutput(&value, 1);
    options.setReduceFunction(
        [](void *out, const void *a, const void *b, size_t n) { gloo::sum<double>(out, a, b, n); });
    gloo::allreduce(options);
    return value;
}

int one_rank(const struct peer_options &o, int rank, const std::string &folder)
try {
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    gloo::rendezvous::FileStore store(folder);
    State s{std::make_shared<gloo::rendezvous::Context>(rank, int(o.ranks)), nullptr};
    s.context->connectFullMesh(store, device);
    struct peer_library l = {"Gloo", rank, int(o.ranks), &s, prepare, run, meet, sum, nullptr};
    int status = peer_run(&l, &o);
    if (status == PEER_OK)
        meet(&l); // nobody closes while others still need it
    return status;
} catch (const std::exception &error) {
    fprintf(stderr, "Gloo, rank %d: %s\n", rank, error.what());
    return PEER_FAILED;
}

// The first status that is not 0; one rank that fails ends the others.
int wait_for(const std::vector<pid_t> &ranks)
{
    int first = PEER_OK, status;
    for (size_t ended = 0; ended < ranks.size() && wait(&status) > 0; ended++) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : PEER_FAILED;
        if (code == PEER_OK || first != PEER_OK)
            continue;
        first = code;
        for (pid_t rank : ranks)
            kill(rank, SIGKILL);
    }
    return first;
}

void remove_folder(const std::string &folder)
{
    DIR *dir = opendir(folder.c_str());
    while (struct dirent *entry = dir ? readdir(dir) : nullptr)
        unlink((folder + "/" + entry->d_name).c_str());
    if (dir)
        closedir(dir);
    rmdir(folder.c_str());
}

} // namespace

int main(int argc, char **argv)
{
    struct peer_options o;
    int status = peer_options_parse(&o, argc, argv);
    if (status != PEER_OK)
        return status;
    const char *tmp = getenv("TMPDIR");
    std::string folder = std::string(tmp ? tmp : "/tmp") + "/gloo_perf.XXXXXX";
    if (o.ranks < 1 || !mkdtemp(&folder[0])) {
        fprintf(stderr, "gloo_perf: needs -t and a folder for temporary files\n");
        return PEER_USAGE;
    }
    std::vector<pid_t> ranks;
    bool forked = true;
    for (int rank = 0; rank < o.ranks && forked; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(one_rank(o, rank, folder));
        }
        forked = pid > 0;
        if (forked)
            ranks.push_back(pid);
    }
    for (pid_t rank : ranks)
        if (!forked)
            kill(rank, SIGKILL); // those that are there would wait for the others
    if (!forked)
        fprintf(stderr, "gloo_perf: cannot start %ld ranks: %s\n", long(o.ranks), strerror(errno));
    status = wait_for(ranks);
    if (!forked && status == PEER_OK)
        status = PEER_FAILED;
    remove_folder(folder);
    return status;
}
