/*
 * Puts the parts of the services together: a page, a JSON object, metrics.
 */
#include "daemon.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char head[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta http-equiv=\"refresh\" content=\"5\"><title>FTCCL</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0}"
    "td,th{text-align:left;padding:.15em .8em;border-bottom:1px solid #ddd;vertical-align:top}"
    ".bad{color:#b00020;font-weight:600}.warn{color:#8a5a00;font-weight:600}.good{color:#0a6b2d}"
    ".note{color:#555}pre{overflow-x:auto}</style></head><body>";

void daemon_put_html(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        const char *escaped = *c == '<'   ? "&lt;"
                              : *c == '>' ? "&gt;"
                              : *c == '&' ? "&amp;"
                              : *c == '"' ? "&quot;"
                                          : NULL;
        if (escaped)
            fputs(escaped, out);
        else
            fputc(*c < ' ' || *c > '~' ? '?' : *c, out);
    }
}

void daemon_put_help(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void daemon_put_label(FILE *out, const char *before, const char *name, const char *value)
{
    fprintf(out, "%s%s=\"", before, name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\')
            fputc('\\', out);
        fputc(*c < ' ' || *c > '~' ? '?' : *c, out);
    }
    fputc('"', out);
}

static void put_page(struct daemon *d, FILE *out)
{
    const struct daemon_service *service;
    char host[64] = "", when[32];
    time_t now = time(NULL);
    struct tm parts;
    int n = daemon_services(d, &service);
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &parts));
    fprintf(out, "%s<h1>%s on ", head, daemon_options_of(d)->program);
    daemon_put_html(out, host);
    fprintf(out,
            "</h1><p class=\"note\">%s; <a href=\"/status?format=json\">JSON</a>, "
            "<a href=\"/metrics\">metrics</a></p>",
            when);
    for (int i = 0; i < n; i++) {
        if (!service[i].page)
            continue;
        fprintf(out, "<section id=\"%s\"><h2>%s</h2>", service[i].name, service[i].name);
        service[i].page(service[i].arg, out);
        fputs("</section>", out);
    }
    fputs("</body></html>\n", out);
}

static char *render_json(struct daemon *d, size_t *len)
{
    const struct daemon_service *service;
    struct ft_text text = {.most = 64 << 20};
    int n = daemon_services(d, &service);
    ft_json_begin(&text, NULL, '{');
    ft_json_int(&text, "version", 1);
    ft_json_string(&text, "program", daemon_options_of(d)->program);
    ft_json_int(&text, "time", (int64_t)time(NULL));
    for (int i = 0; i < n; i++)
        if (service[i].json)
            service[i].json(service[i].arg, &text);
    ft_json_end(&text, '}');
    ft_text_add(&text, "\n");
    if (text.broken) {
        ft_text_free(&text);
        return NULL;
    }
    *len = text.len;
    return text.at;
}

static void put_metrics(struct daemon *d, FILE *out)
{
    const struct daemon_service *service;
    int n = daemon_services(d, &service);
    for (int i = 0; i < n; i++)
        if (service[i].metrics)
            service[i].metrics(service[i].arg, out);
}

char *daemon_render(struct daemon *d, enum daemon_text which, size_t *len)
{
    char *text = NULL;
    if (which == DAEMON_JSON)
        return render_json(d, len);
    FILE *out = open_memstream(&text, len);
    if (!out)
        return NULL;
    if (which == DAEMON_PAGE)
        put_page(d, out);
    else
        put_metrics(d, out);
    bool good = !ferror(out);
    if (fclose(out) == 0 && good)
        return text;
    free(text);
    return NULL;
}
