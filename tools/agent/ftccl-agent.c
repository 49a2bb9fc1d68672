/*
 * ftccl-agent: the agent of a host.
 */
#include "agent.h"
#include "members.h"

static const char help[] =
    "usage: ftccl-agent [OPTION]...\n"
    "Watches the ranks of this host and the host itself, keeps what killed ranks left, and shows\n"
    "what it has found on /status (a page, or JSON) and /metrics. Ends with SIGTERM.\n"
    "      --listen HOST:PORT   where it answers (default 127.0.0.1:28029)\n"
    "      --state DIR          keeps its history and what killed ranks left in DIR\n"
    "      --master HOST:PORT   reports to the ftccld there\n"
    "      --coordinator HOST:PORT[,..]  carries what managed members of this host say to the\n"
    "                           coordinator there, for which they take this agent\n"
    "      --key-file F         the key that it has in common with the master, the coordinator "
    "and\n"
    "                           members; only the owner may be able to use the file\n"
    "      --interval SECONDS   between two looks (default 1)\n"
    "      --after SECONDS      waits shorter than this are no hang (default 5)\n"
    "      --stacks SECONDS     for so long a tool may look at the stack of a process that\n"
    "                           takes part in a hang (default 3; 0: none does)\n"
    "      --dir DIR            telemetry files in DIR instead of /dev/shm\n"
    "      --inspector DIR      writes operations into DIR as NCCL's Inspector does\n"
    "      --root DIR           /sys and /proc below DIR\n"
    "  -h, --help               this text\n";

static int run(struct daemon *d, const struct daemon_options *options)
{
    struct daemon_past *past = daemon_past_open(options->state);
    struct agent *agent = past ? agent_open(d, past) : NULL;
    struct carrier *carrier = options->coordinator[0] ? carrier_open(d, options->coordinator)
                                                      : NULL;
    int status = 2;
    if (agent && (carrier || !options->coordinator[0])) {
        agent_add(agent);
        if (carrier)
            carrier_add(carrier);
        struct daemon_service history = daemon_past_service(past);
        daemon_add(d, &history);
        status = daemon_run(d);
    }
    daemon_close(d);
    carrier_close(carrier);
    agent_close(agent);
    daemon_past_close(past);
    return status;
}

int main(int argc, char **argv)
{
    struct daemon_options options = {.program = "ftccl-agent",
                                     .listen = "127.0.0.1:28029",
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
                                     .stacks_s = 3};
    int status = daemon_options_take(argc, argv, &options, help);
    if (status >= 0)
        return status;
    struct daemon *d = daemon_open(&options);
    return d ? run(d, &options) : 2;
}
