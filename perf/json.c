/* A JSON writer. Its only state is one bit for each open level. */
#include "perf.h"

#include <math.h>
#include <string.h>

#define DEPTH_MAX 16

static FILE *file;
static int depth;
static bool is_list[DEPTH_MAX], has_members[DEPTH_MAX], after_key;

int perf_json_open(const char *path)
{
    file = fopen(path, "we");
    if (!file)
        return -1;
    perf_json_open_object();
    return 0;
}

void perf_json_close(void)
{
    if (!file)
        return;
    while (depth > 0)
        perf_json_end();
    fputc('\n', file);
    if (fclose(file))
        perror("output file");
    file = NULL;
}

static bool before_value(void)
{
    if (!file)
        return false;
    if (!after_key && depth > 0 && has_members[depth - 1])
        fputs(",\n", file);
    if (depth > 0)
        has_members[depth - 1] = true;
    after_key = false;
    return true;
}

static void put_string(const char *text)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

void perf_json_key(const char *name)
{
    if (!before_value())
        return;
    put_string(name);
    fputc(':', file);
    after_key = true;
}

static void open_level(bool list)
{
    if (!before_value())
        return;
    fputc(list ? '[' : '{', file);
    is_list[depth] = list;
    has_members[depth++] = false;
}

void perf_json_open_object(void)
{
    open_level(false);
}
void perf_json_open_list(void)
{
    open_level(true);
}

void perf_json_end(void)
{
    if (!file)
        return;
    fputc(is_list[--depth] ? ']' : '}', file);
}

void perf_json_str(const char *text)
{
    if (before_value())
        put_string(text);
}

void perf_json_num(double value)
{
    if (!isfinite(value))
        perf_json_null();
    else if (before_value())
        fprintf(file, "%.9g", value);
}

void perf_json_int(long long value)
{
    if (before_value())
        fprintf(file, "%lld", value);
}

void perf_json_bool(bool value)
{
    if (before_value())
        fputs(value ? "true" : "false", file);
}

void perf_json_null(void)
{
    if (before_value())
        fputs("null", file);
}
