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

#define LINES_MOST 10000

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
    int bad = 0;
    if (!name_file(p, "", name))
        return;
    FILE *file = fopen(name, "re");
    bool good = file || errno == ENOENT;
    for (int n = 0; file && n < LINES_MOST && fgets(line, sizeof line, file); n++)
        bad += !take_line(p, line);
    if (file) {
        good = !ferror(file);
        fclose(file);
    }
    if (!good)
        snprintf(p->trouble, sizeof p->trouble, "%.128s cannot be read", name);
    else if (bad > 0)
        snprintf(p->trouble, sizeof p->trouble, "%d lines of %.128s make no sense", bad, name);
}

static void put_all(const struct paths *p, FILE *file)
{
    unsigned char from[16], to[16];
    char a[FT_NET_TEXT_BYTES], b[FT_NET_TEXT_BYTES];
    for (int i = 0; ft_allocator_out_at(p->allocator, i, from, to); i++)
        fprintf(file, "%s %s\n", ft_paths_ip_text(from, a), ft_paths_ip_text(to, b));
}

/* False, with errno: the file is not there as a whole. */
static bool write_file(const struct paths *p, const char *name)
{
    FILE *file = fopen(name, "we");
    if (!file)
        return false;
    put_all(p, file);
    const bool good = fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && good;
}

int paths_save(struct paths *p)
{
    char name[4096], fresh[4096];
    p->trouble[0] = 0;
    if (!name_file(p, "", name) || !name_file(p, ".new", fresh) ||
        (write_file(p, fresh) && rename(fresh, name) == 0))
        return FT_OK; /* without a folder nothing is kept */
    snprintf(p->trouble, sizeof p->trouble, "%.128s cannot be written: %s", name, strerror(errno));
    unlink(fresh);
    return ft_fail(FT_SYSTEM, "this is so until ftccld ends: %s", p->trouble);
}
