/*
 * Writes JSON for programs that read what the library tells. The library must be able to do so
 * without another library, and only has to write: this is the part of JSON that it needs. Numbers
 * do not depend on the locale of the program.
 */
#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_ROOM 512

/* Makes room for len_bytes and a terminating NUL. */
static bool make_room(struct ft_text *text, size_t len_bytes)
{
    size_t need = text->len + len_bytes + 1, room = ft_max(text->room, LEAST_ROOM);
    if (need <= text->room && need <= text->most)
        return true;
    while (room < need && room <= text->most)
        room *= 2;
    char *grown = need <= text->most ? realloc(text->at, room) : NULL;
    if (!grown) {
        text->broken = true;
        return false;
    }
    text->at = grown;
    text->room = room;
    return true;
}

void ft_text_add(struct ft_text *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    if (!text->broken && len >= 0 && make_room(text, (size_t)len)) {
        vsnprintf(text->at + text->len, text->room - text->len, fmt, again);
        text->len += (size_t)len;
    }
    va_end(again);
    va_end(args);
}

void ft_text_add_bytes(struct ft_text *text, const void *bytes, size_t len_bytes)
{
    if (text->broken || !make_room(text, len_bytes))
        return;
    memcpy(text->at + text->len, bytes, len_bytes);
    text->len += len_bytes;
    text->at[text->len] = '\0';
}

void ft_text_free(struct ft_text *text)
{
    free(text->at);
    *text = (struct ft_text){.most = text->most};
}

static void add_quoted(struct ft_text *text, const char *value)
{
    ft_text_add(text, "\"");
    for (const unsigned char *p = (const unsigned char *)value; *p;) {
        size_t plain = 0;
        while (p[plain] >= ' ' && p[plain] < 127 && p[plain] != '"' && p[plain] != '\\')
            plain++;
        if (plain > 0)
            ft_text_add(text, "%.*s", (int)plain, (const char *)p);
        else
            ft_text_add(text, "\\u%04x", *p);
        p += plain > 0 ? plain : 1;
    }
    ft_text_add(text, "\"");
}

/* The comma after the element before, and the key. */
static void add_key(struct ft_text *text, const char *key)
{
    char last = text->len > 0 ? text->at[text->len - 1] : '[';
    if (last != '[' && last != '{' && last != '\n')
        ft_text_add(text, ",");
    if (!key)
        return;
    add_quoted(text, key);
    ft_text_add(text, ":");
}

void ft_json_begin(struct ft_text *text, const char *key, char bracket)
{
    add_key(text, key);
    ft_text_add(text, "%c", bracket);
}

void ft_json_end(struct ft_text *text, char bracket)
{
    ft_text_add(text, "%c", bracket);
}

void ft_json_string(struct ft_text *text, const char *key, const char *value)
{
    add_key(text, key);
    add_quoted(text, value);
}

void ft_json_int(struct ft_text *text, const char *key, int64_t value)
{
    add_key(text, key);
    ft_text_add(text, "%lld", (long long)value);
}

/* With at most six decimals, and at least one. */
void ft_json_real(struct ft_text *text, const char *key, double value)
{
    char digits[8];
    double micros = isfinite(value) && fabs(value) < 1e12 ? round(fabs(value) * 1e6) : 0;
    uint64_t whole = (uint64_t)(micros / 1e6);
    snprintf(digits, sizeof digits, "%06u", (unsigned)((uint64_t)micros % 1000000u));
    for (int i = 5; i > 0 && digits[i] == '0'; i--)
        digits[i] = '\0';
    add_key(text, key);
    ft_text_add(text, "%s%llu.%s", value < 0 && micros > 0 ? "-" : "", (unsigned long long)whole,
                digits);
}

void ft_json_bool(struct ft_text *text, const char *key, bool value)
{
    add_key(text, key);
    ft_text_add(text, value ? "true" : "false");
}

void ft_json_null(struct ft_text *text, const char *key)
{
    add_key(text, key);
    ft_text_add(text, "null");
}
