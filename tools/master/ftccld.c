/*
 * ftccld: services of a job or a cluster: the masters of diagnosis and of paths, and the
 * coordinator of managed membership.
 */
#include "master.h"
#include "members.h"
#include "paths.h"

#include "telemetry/telemetry.h"

static const char help[] =
    "usage: ftccld [OPTION]...\n"
    "Puts together what the agents of all hosts report, says for whom jobs wait, gives paths\n"
    "through the network to jobs that ask (FTCCL_PATHS_MASTER), gives members of jobs their views\n"
    "(FTCCL_COORDINATOR), and shows it on /status (a page, or JSON) and /metrics. Ends with\n"
    "SIGTERM.\n"
    "      --listen HOST:PORT   where agents and browsers find it (default 127.0.0.1:28030)\n"
    "      --state DIR          keeps its history in DIR\n"
    "      --key-file F         the key that agents and ranks must have; without it none is let\n"
    "                           in\n"
    "      --store URL          etcd://HOST:PORT[,HOST:PORT...][/PREFIX]: of several ftccld with "
    "one\n"
    "                           store one leads, which members find by trying all\n"
    "      --advertise H:P      with --store: where members reach this one\n"
    "      --lease SECONDS      with --store: how long nobody leads after a death (default 5)\n"
    "      --agent              is the agent of this host, too\n"
    "      --interval SECONDS   between two looks (default 1)\n"
    "      --after SECONDS      waits shorter than this are no hang (default 5)\n"
    "      --stacks SECONDS     with --agent: for so long a tool may look at the stack of a\n"
    "                           process that takes part in a hang (default 3; 0: none does)\n"
    "      --dir DIR            with --agent: telemetry files in DIR instead of /dev/shm\n"
    "      --inspector DIR      with --agent: writes operations into DIR as NCCL's Inspector does\n"
    "      --root DIR           with --agent: /sys and /proc below DIR\n"
    "  -h, --help               this text\n";

struct parts {
    struct daemon_past *past;
    struct agent *agent;
    struct master *master;
    struct paths *paths;
    struct members *members;
};

static bool open_parts(struct parts *p, struct daemon *d, const struct daemon_options *options)
{
    p->past = daemon_past_open(options->state);
    p->master = p->past ? master_open(d, p->past) : NULL;
    p->paths = paths_open(d);
    p->members = members_open(d);
    if (!p->master || !p->paths || !p->members)
        return false;
    if (options->agent) {
        p->agent = agent_open(d, p->past);
        if (!p->agent)
            return false;
        master_set_agent(p->master, p->agent);
        agent_add(p->agent);
    }
    master_add(p->master);
    paths_add(p->paths);
    members_add(p->members);
    struct daemon_service history = daemon_past_service(p->past);
    daemon_add(d, &history);
    return true;
}

static int run(struct daemon *d, const struct daemon_options *options)
{
    struct parts p = {0};
    int status = open_parts(&p, d, options) ? daemon_run(d) : 2;
    daemon_close(d);
    agent_close(p.agent);
    members_close(p.members);
    paths_close(p.paths);
    master_close(p.master);
    daemon_past_close(p.past);
    return status;
}

int main(int argc, char **argv)
{
    struct daemon_options options = {.program = "ftccld",
                                     .listen = "127.0.0.1:28030",
                                     .state = "",
                                     .key_file = "",
                                     .master = "",
                                     .coordinator = "",
                                     .store = "",
                                     .advertise = "",
                                     .dir = FT_TELEMETRY_DIR,
                                     .root = "",
                                     .inspector = "",
                                     .interval_s = 1,
                                     .after_s = 5,
                                     .lease_s = 5,
                                     .stacks_s = 3};
    int status = daemon_options_take(argc, argv, &options, help);
    if (status >= 0)
        return status;
    struct daemon *d = daemon_open(&options);
    return d ? run(d, &options) : 2;
}
