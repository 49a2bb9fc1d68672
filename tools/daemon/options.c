/*
 * The command lines of ftccl-agent and ftccld, which have most options in common.
 */
#include "daemon.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_LISTEN = 256,
    OPT_STATE,
    OPT_KEY_FILE,
    OPT_MASTER,
    OPT_COORDINATOR,
    OPT_STORE,
    OPT_ADVERTISE,
    OPT_LEASE,
    OPT_DIR,
    OPT_ROOT,
    OPT_INSPECTOR,
    OPT_INTERVAL,
    OPT_AFTER,
    OPT_STACKS,
    OPT_AGENT
};

static const struct option known[] = {
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"state", required_argument, NULL, OPT_STATE},
    {"key-file", required_argument, NULL, OPT_KEY_FILE},
    {"master", required_argument, NULL, OPT_MASTER},
    {"coordinator", required_argument, NULL, OPT_COORDINATOR},
    {"store", required_argument, NULL, OPT_STORE},
    {"advertise", required_argument, NULL, OPT_ADVERTISE},
    {"lease", required_argument, NULL, OPT_LEASE},
    {"dir", required_argument, NULL, OPT_DIR},
    {"root", required_argument, NULL, OPT_ROOT},
    {"inspector", required_argument, NULL, OPT_INSPECTOR},
    {"interval", required_argument, NULL, OPT_INTERVAL},
    {"after", required_argument, NULL, OPT_AFTER},
    {"stacks", required_argument, NULL, OPT_STACKS},
    {"agent", no_argument, NULL, OPT_AGENT},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static bool take_seconds(const struct daemon_options *o, const char *name, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(optarg, &end);
    if (*optarg && !*end && !errno && value >= 0.05 && value <= 3600) {
        *out = value;
        return true;
    }
    fprintf(stderr, "%s: --%s: %s is not a number of seconds from 0.05 to 3600\n", o->program, name,
            optarg);
    return false;
}

static bool take_text(int option, struct daemon_options *o)
{
    const struct {
        int option;
        const char **to;
    } text[] = {
        {OPT_LISTEN, &o->listen},
        {OPT_STATE, &o->state},
        {OPT_KEY_FILE, &o->key_file},
        {OPT_MASTER, &o->master},
        {OPT_DIR, &o->dir},
        {OPT_ROOT, &o->root},
        {OPT_INSPECTOR, &o->inspector},
        {OPT_COORDINATOR, &o->coordinator},
        {OPT_STORE, &o->store},
        {OPT_ADVERTISE, &o->advertise},
    };
    for (size_t i = 0; i < FT_ARRAY_LEN(text); i++)
        if (text[i].option == option) {
            *text[i].to = optarg;
            return true;
        }
    return false;
}

/* An option that only the other program has is refused. */
static bool is_ours(const struct daemon_options *o, int option)
{
    static const struct {
        int option;
        const char *name;
        bool of_agent;
    } special[] = {
        {OPT_MASTER, "master", true}, {OPT_COORDINATOR, "coordinator", true},
        {OPT_AGENT, "agent", false},  {OPT_STORE, "store", false},
        {OPT_LEASE, "lease", false},  {OPT_ADVERTISE, "advertise", false},
    };
    bool agent = strcmp(o->program, "ftccl-agent") == 0;
    for (size_t i = 0; i < FT_ARRAY_LEN(special); i++)
        if (special[i].option == option && special[i].of_agent != agent) {
            fprintf(stderr, "%s: there is no option --%s\n", o->program, special[i].name);
            return false;
        }
    return true;
}

static bool take(int option, struct daemon_options *o)
{
    if (!is_ours(o, option))
        return false;
    switch (option) {
    case OPT_INTERVAL:
        return take_seconds(o, "interval", &o->interval_s);
    case OPT_AFTER:
        return take_seconds(o, "after", &o->after_s);
    case OPT_LEASE:
        return take_seconds(o, "lease", &o->lease_s);
    case OPT_STACKS:
        o->stacks_s = 0;
        return strcmp(optarg, "0") == 0 || take_seconds(o, "stacks", &o->stacks_s);
    case OPT_AGENT:
        return o->agent = true;
    default:
        return take_text(option, o);
    }
}

/* What does not go together. */
static bool check(const struct daemon_options *o)
{
    if ((o->master[0] || o->coordinator[0]) && !o->key_file[0]) {
        fprintf(stderr, "%s: --%s needs --key-file\n", o->program,
                o->master[0] ? "master" : "coordinator");
        return false;
    }
    if (o->store[0] && (!o->key_file[0] || !o->advertise[0])) {
        fprintf(stderr, "%s: --store needs --key-file and --advertise\n", o->program);
        return false;
    }
    return true;
}

int daemon_options_take(int argc, char **argv, struct daemon_options *options, const char *help)
{
    for (int c; (c = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (!take(c, options))
            return 2;
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unknown argument %s; see --help\n", options->program, argv[optind]);
        return 2;
    }
    return check(options) ? -1 : 2;
}
