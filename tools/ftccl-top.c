/*
 * ftccl-top: what the ranks of a job on this machine do, live in a terminal or once as text or
 * JSON. No rank has to help.
 */
#include "top.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: ftccl-top [OPTION]...\n"
    "Shows what the ranks of a job on this machine do: the job with a fault, or the largest one.\n"
    "      --once           two looks, as text\n"
    "      --json           with --once: as JSON\n"
    "      --delay SECONDS  between two looks (default 1)\n"
    "      --after SECONDS  waits shorter than this are no hang (default 5)\n"
    "      --pid N          the job of process N\n"
    "      --sort COLUMN    rank, state, behind, inside or rate\n"
    "      --dir DIR        telemetry files in DIR instead of /dev/shm\n"
    "  -h, --help           this text\n";

enum { OPT_ONCE = 256, OPT_JSON, OPT_DELAY, OPT_AFTER, OPT_PID, OPT_SORT, OPT_DIR };

static const struct option options[] = {
    {"once", no_argument, NULL, OPT_ONCE},
    {"json", no_argument, NULL, OPT_JSON},
    {"delay", required_argument, NULL, OPT_DELAY},
    {"after", required_argument, NULL, OPT_AFTER},
    {"pid", required_argument, NULL, OPT_PID},
    {"sort", required_argument, NULL, OPT_SORT},
    {"dir", required_argument, NULL, OPT_DIR},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Exits with a sentence unless the text is a number in this range. */
static double take_number(const char *name, const char *text, double least, double most)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (*text && !*end && !errno && value >= least && value <= most)
        return value;
    fprintf(stderr, "ftccl-top: --%s: %s is not a number from %g to %g\n", name, text, least, most);
    exit(2);
}

static enum top_sort take_sort(const char *text)
{
    for (int i = 0; i < TOP_SORT_COUNT; i++)
        if (!strcmp(text, top_sort_name((enum top_sort)i)))
            return (enum top_sort)i;
    fprintf(stderr, "ftccl-top: --sort: there is no column %s\n", text);
    exit(2);
}

static void take_option(int c, struct top_request *request)
{
    switch (c) {
    case OPT_ONCE:
        request->once = true;
        break;
    case OPT_JSON:
        request->json = true;
        break;
    case OPT_DELAY:
        request->delay_s = take_number("delay", optarg, 0.1, 3600);
        break;
    case OPT_AFTER:
        request->after_s = take_number("after", optarg, 0, 86400);
        break;
    case OPT_PID:
        request->pid = (int)take_number("pid", optarg, 1, INT_MAX);
        break;
    case OPT_SORT:
        request->sort = take_sort(optarg);
        break;
    case OPT_DIR:
        request->dir = optarg;
        break;
    case 'h':
        fputs(help, stdout);
        exit(0);
    default:
        exit(2);
    }
}

static void print_table(const struct top *top)
{
    char line[384];
    printf("%s; %s\n", top->job, top->verdict);
    top_head(line, sizeof line);
    printf("%s\n", line);
    for (int i = 0; i < top->n; i++) {
        top_line(&top->row[i], line, sizeof line);
        printf("%s\n", line);
    }
}

/* Rates need two looks. */
static int show_once(struct top *top, const struct top_request *request)
{
    struct timespec pause = {.tv_sec = (time_t)request->delay_s,
                             .tv_nsec = (long)(fmod(request->delay_s, 1) * 1e9)};
    for (int i = 0; i < 2; i++) {
        if (i > 0)
            nanosleep(&pause, NULL);
        if (top_look(top, request) == FT_OK)
            continue;
        fprintf(stderr, "ftccl-top: %s\n", ft_fail_text());
        return 2;
    }
    if (request->json)
        top_print_json(stdout, top);
    else
        print_table(top);
    return fflush(stdout) == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
    struct top_request request = {.dir = "/dev/shm", .after_s = 5, .delay_s = 1};
    struct top top = {.row = NULL};
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;)
        take_option(c, &request);
    if (optind < argc) {
        fprintf(stderr, "ftccl-top: unknown argument %s; see --help\n", argv[optind]);
        return 2;
    }
    if (request.json && !request.once) {
        fprintf(stderr, "ftccl-top: --json needs --once\n");
        return 2;
    }
    int status = request.once ? show_once(&top, &request) : top_screen(&top, &request);
    top_free(&top);
    return status;
}
