/*
 * Prints the build and the parameters. Nothing here depends on time or place of the build, so
 * builds are reproducible.
 */
#include "info.h"

#include <string.h>

void info_build(FILE *out)
{
    fprintf(out, "ftccl %s\n", PACKAGE_VERSION);
#ifdef __clang__
    fprintf(out, "  compiler: %s\n", __VERSION__);
#else
    fprintf(out, "  compiler: gcc %s\n", __VERSION__);
#endif
    static const struct {
        const char *name;
        bool there;
    } library[] = {
#ifdef FT_HAVE_HWLOC
        {"hwloc", true},
#else
        {"hwloc", false},
#endif
#ifdef FT_HAVE_VERBS
        {"verbs", true},
#else
        {"verbs", false},
#endif
#ifdef FT_HAVE_LIBFABRIC
        {"libfabric", true},
#else
        {"libfabric", false},
#endif
    };
    fputs("  optional libraries:", out);
    for (size_t i = 0; i < FT_ARRAY_LEN(library); i++)
        fprintf(out, " %s=%s", library[i].name, library[i].there ? "yes" : "no");
    fputc('\n', out);
}

/* ---- parameters ------------------------------------------------------------------------------ */

enum { INT, STR };
#define DEFAULT_INT(def) (long long)(def), ""
#define DEFAULT_STR(def) 0, def
static const struct row {
    const char *name;
    bool text;
    long long number;
    const char *string;
    long long lowest, highest;
    const char *unit, *alias, *help;
} rows[] = {
#define X(id, env, kind, def, lo, hi, unit, alias, help) \
    {env, kind == STR, DEFAULT_##kind(def), lo, hi, unit, alias, help},
    FT_PARAMS(X)
#undef X
};

void info_params_changed(FILE *out)
{
    fputs("parameters that differ from their defaults (all: ftccl-info -p):\n", out);
    int changed = 0;
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        const struct row *row = &rows[id];
        if (row->text) {
            const char *value = ft_param_str((enum ft_param_id)id);
            if (!strcmp(value, row->string))
                continue;
            fprintf(out, "  %s=%s\n", row->name, id == FT_PARAM_SECRET ? "(set)" : value);
        } else {
            long long value = ft_param_int((enum ft_param_id)id);
            if (value == row->number)
                continue;
            fprintf(out, "  %s=%lld\n", row->name, value);
        }
        changed++;
    }
    if (!changed)
        fputs("  none\n", out);
}

/* Prints text of a manual page without hyphenation of names and numbers, and without accidental
 * requests. */
static void put_roff(FILE *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '-')
            fputs("\\-", out);
        else if (*p == '\\')
            fputs("\\e", out);
        else if (p == text && (*p == '.' || *p == '\''))
            fprintf(out, "\\&%c", *p);
        else
            fputc(*p, out);
    }
    fputc('\n', out);
}

void info_params_man(FILE *out)
{
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        const struct row *row = &rows[id];
        fprintf(out, ".TP\n.B %s\n", row->name);
        put_roff(out, row->help);
        char facts[256] = "";
        if (!row->text)
            snprintf(facts, sizeof facts, "Default %lld%s%s, from %lld to %lld. ", row->number,
                     *row->unit ? " " : "", row->unit, row->lowest, row->highest);
        else if (*row->string)
            snprintf(facts, sizeof facts, "Default %s. ", row->string);
        size_t len = strlen(facts);
        if (*row->alias)
            snprintf(facts + len, sizeof facts - len, "Also %s. ", row->alias);
        if (!*facts)
            continue;
        facts[strlen(facts) - 1] = '\0';
        fputs(".br\n", out);
        put_roff(out, facts);
    }
}
