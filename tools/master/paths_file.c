/*
 * The links that an operator has taken out, in a file of the state folder: a line for each, FROM
 * TO, where FROM may be `any`. It is written anew with each change, and replaced in one step. Lines
 * that make no sense are passed over, and the page says so.
 */
#include "paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES_MOST 100000

static bool take_line(struct paths *p, const char *line)
{
    char from[64], to[64], rest;
    unsigned char a[16], b[16];
    if (sscanf(line, "%63s %63s %c", from, to, &rest) != 2 || !ft_paths_parse_ip(from, a) ||
        !ft_paths_parse_ip(to, b))
        return false;
    return ft_allocator_set_out(p->allocator, a, b, true) == FT_OK;
}

static bool name_file(const struct paths *p, const char *suffix, char name[4096])
{
    const char *folder = daemon_options_of(p->daemon)->state;
    return folder[0] && snprintf(name, 4096, "%s/%s%s", folder, PATHS_FILE, suffix) < 4096;
}

void paths_load(struct paths *p)
{
    char name[4096], line[256];
    FILE *file = name_file(p, "", name) ? fopen(name, "re") : NULL;
    int bad = 0;
    for (int n = 0; file && n < LINES_MOST && fgets(line, sizeof line, file); n++)
        bad += !take_line(p, line);
    if (bad > 0)
        snprintf(p->trouble, sizeof p->trouble, "%d lines of %.128s make no sense", bad, name);
    if (file)
        fclose(file);
}

/* Copies all lines but that of the link. */
static void copy_others(FILE *from, FILE *to, const char *link)
{
    char line[256];
    while (from && fgets(line, sizeof line, from))
        if (strcmp(line, link) != 0)
            fputs(line, to);
}

int paths_save(struct paths *p, const unsigned char from[16], const unsigned char to[16], bool out)
{
    char name[4096], fresh[4096], a[FT_NET_TEXT_BYTES], b[FT_NET_TEXT_BYTES];
    char link[2 * FT_NET_TEXT_BYTES + 2];
    if (!name_file(p, "", name) || !name_file(p, ".new", fresh))
        return FT_OK; /* nothing is kept */
    snprintf(link, sizeof link, "%s %s\n", ft_paths_ip_text(from, a), ft_paths_ip_text(to, b));
    FILE *old = fopen(name, "re"), *file = fopen(fresh, "we");
    if (file) {
        copy_others(old, file, link);
        if (out)
            fputs(link, file);
    }
    if (old)
        fclose(old);
    bool good = file && fflush(file) == 0 && fsync(fileno(file)) == 0;
    good = file && fclose(file) == 0 && good && rename(fresh, name) == 0;
    p->trouble[0] = 0;
    if (good)
        return FT_OK;
    snprintf(p->trouble, sizeof p->trouble, "%.128s cannot be written: %s", name, strerror(errno));
    return ft_fail(FT_SYSTEM, "this is so until ftccld ends: %s", p->trouble);
}
