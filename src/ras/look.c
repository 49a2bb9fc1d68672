/*
 * A look at the ranks: reads the telemetry files of this host one by one, asks other hosts, and
 * judges what all tell. A slice reads one file, takes one answer or does one analysis.
 */
#include "ras/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void say_trouble(struct ft_ras_look *look, const char *text)
{
    if (!look->trouble[0])
        snprintf(look->trouble, sizeof look->trouble, "%.250s", text);
}

void ft_ras_look_begin(struct ft_ras_look *look, uint64_t now_ns)
{
    *look = (struct ft_ras_look){.stage = FT_RAS_LOOK_READS, .begun_ns = now_ns};
    look->snapshot = calloc(1, sizeof *look->snapshot);
    look->verdicts = calloc(FT_RAS_VERDICTS, sizeof *look->verdicts);
    if (!look->snapshot || !look->verdicts) {
        say_trouble(look, "no memory");
        look->stage = FT_RAS_LOOK_DONE;
        return;
    }
    look->snapshot->now_ns = now_ns;
    look->snapshot->real_ns = (uint64_t)time(NULL) * 1000000000u;
    look->nfiles = ft_telemetry_files(FT_TELEMETRY_DIR, &look->files);
    if (look->nfiles < 0)
        say_trouble(look, ft_fail_text());
}

void ft_ras_look_end(struct ft_ras_look *look)
{
    free(look->files);
    free(look->verdicts);
    ft_snapshot_free(look->snapshot);
    ft_ras_round_end(&look->round);
    *look = (struct ft_ras_look){.stage = FT_RAS_LOOK_NONE};
}

static void read_file(struct ft_ras_look *look)
{
    const struct ft_telemetry_file *file = &look->files[look->file++];
    struct ft_snapshot *one;
    if (ft_snapshot_of_file(file->path, &one) != FT_OK) {
        say_trouble(look, ft_fail_text());
        return;
    }
    if (ft_snapshot_merge(look->snapshot, one) != FT_OK)
        say_trouble(look, ft_fail_text());
    ft_snapshot_free(one);
}

static void find(struct ft_ras_look *look, int found)
{
    if (found < 0)
        say_trouble(look, "no memory for the analysis");
    look->found = found < 0 ? 0 : (int)ft_min((size_t)found, FT_RAS_VERDICTS);
}

static void finish(struct ft_ras_look *look, uint64_t now_ns)
{
    char text[128];
    int unreadable = look->snapshot->unreadable;
    if (look->found == 0 && look->round.silent > 0) {
        snprintf(text, sizeof text,
                 "%d of %d other hosts did not answer; nothing is wrong with the "
                 "others",
                 look->round.silent, look->round.n);
        say_trouble(look, text);
    }
    if (look->found == 0 && unreadable > 0) {
        snprintf(text, sizeof text,
                 "%d telemetry files cannot be read; nothing is wrong with the others", unreadable);
        say_trouble(look, text);
    }
    look->stage = FT_RAS_LOOK_DONE;
    look->ended_ns = now_ns;
}

void ft_ras_look_step(struct ft_ras_look *look, uint64_t now_ns)
{
    switch (look->stage) {
    case FT_RAS_LOOK_READS:
        if (look->file < look->nfiles)
            read_file(look);
        if (look->file >= look->nfiles)
            look->stage = FT_RAS_LOOK_ASKS;
        break;
    case FT_RAS_LOOK_ASKS:
        ft_ras_round_begin(&look->round, look->snapshot, now_ns);
        look->stage = FT_RAS_LOOK_WAITS;
        break;
    case FT_RAS_LOOK_WAITS:
        if (ft_ras_round_is_over(&look->round, now_ns))
            look->stage = FT_RAS_LOOK_MERGES;
        break;
    case FT_RAS_LOOK_MERGES:
        if (!ft_ras_round_merge(&look->round, look->snapshot))
            look->stage = FT_RAS_LOOK_HANGS;
        break;
    case FT_RAS_LOOK_HANGS:
        find(look, ft_diagnose_hang(look->snapshot, FT_RAS_AFTER_S * 1000000000ull, look->verdicts,
                                    FT_RAS_VERDICTS));
        look->stage = FT_RAS_LOOK_SLOW;
        break;
    case FT_RAS_LOOK_SLOW:
        if (look->found == 0 &&
            !ft_diagnose_may_hang(look->snapshot, FT_RAS_AFTER_S * 1000000000ull))
            find(look, ft_diagnose_slow(look->snapshot, look->verdicts, FT_RAS_VERDICTS));
        finish(look, now_ns);
        break;
    default:
        break;
    }
}
