/*
 * Reads stacks from what py-spy, eu-stack and gdb write, and brings them into a form in which the
 * same place in the program is the same text on every rank.
 */
#include "stacks.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *ft_stack_source_name(enum ft_stack_source source)
{
    static const char *const names[] = {
#define X(name, text) text,
        FT_STACK_SOURCES(X)
#undef X
    };
    return (unsigned)source < FT_STACK_SOURCE_COUNT ? names[source] : "?";
}

#define RANGES 16 /* of the library's code */

/* Frames; one that is longer is cut. inside: it is in the library. */
struct frames {
    char text[FT_STACK_FRAMES][FT_STACK_FRAME_BYTES];
    bool inside[FT_STACK_FRAMES];
    int n;
};

/* What a tool has written, and where the library is in the memory of the process. */
struct reading {
    enum ft_stack_source tool;
    int pid, tid;
    struct {
        unsigned long long from, to;
    } library[RANGES];
    int nlibrary;
    struct frames frames;
};

/* ---- lines of the tools ---------------------------------------------------------------------- */

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The number behind a word: "(LWP 4711)"; 0: it is not there. */
static long number_behind(const char *line, const char *word)
{
    const char *at = strstr(line, word);
    return at ? strtol(at + strlen(word), NULL, 10) : 0;
}

/* Whether a line begins the stack of a thread, and whether it is the wanted one. */
static bool is_header(const struct reading *r, const char *line, bool *wanted)
{
    const char *word = r->tool == FT_STACK_EUSTACK ? "TID " : "Thread ";
    if (!starts(line, word))
        return false;
    if (r->tool == FT_STACK_GDB)
        *wanted = number_behind(line, "(LWP ") == r->tid ||
                  number_behind(line, "(process ") == r->tid;
    else
        *wanted = number_behind(line, word) == r->tid ||
                  (r->tool == FT_STACK_PYSPY && r->tid == r->pid && strstr(line, "\"MainThread\""));
    return true;
}

/* libftccl.so, libnccl.so, and the module of the Python package. */
static bool is_library_file(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    return strstr(name, ".so") && (strstr(name, "ftccl") || starts(name, "libnccl"));
}

/* gdb's list of libraries: "0x7f01 0x7f09 Yes (*) /usr/lib/libftccl.so.0". */
static void note_library(struct reading *r, const char *line)
{
    char *end;
    if (r->tool != FT_STACK_GDB || !starts(line, "0x") || !is_library_file(line) ||
        r->nlibrary == RANGES)
        return;
    r->library[r->nlibrary].from = strtoull(line, &end, 16);
    r->library[r->nlibrary].to = strtoull(end, NULL, 16);
    r->nlibrary++;
}

static bool is_in_library(const struct reading *r, unsigned long long address)
{
    for (int i = 0; i < r->nlibrary; i++)
        if (address >= r->library[i].from && address < r->library[i].to)
            return true;
    return false;
}

/* The frame of a line, behind its number and address; NULL: the line is none. */
static char *frame_of(const struct reading *r, char *line, bool *inside)
{
    *inside = false;
    if (r->tool == FT_STACK_PYSPY)
        return starts(line, "    ") && line[4] && !isspace((unsigned char)line[4]) ? line + 4
                                                                                   : NULL;
    if (line[0] != '#' || !isdigit((unsigned char)line[1]))
        return NULL;
    for (line++; isdigit((unsigned char)*line); line++) {}
    line += strspn(line, " ");
    if (starts(line, "0x")) {
        *inside = is_in_library(r, strtoull(line, &line, 16));
        line += strspn(line, " ");
        line += starts(line, "in ") ? 3 : 0;
    }
    return *line ? line : NULL;
}

/* eu-stack writes the file behind the frame: "read - /usr/lib/libc.so.6". */
static void take_file(char *frame, bool *inside)
{
    char *at = NULL;
    for (char *next = strstr(frame, " - "); next; next = strstr(next + 3, " - "))
        at = next;
    if (!at)
        return;
    *inside = is_library_file(at + 3);
    *at = '\0';
}

static void add_frame(struct reading *r, char *text, bool inside)
{
    struct frames *frames = &r->frames;
    if (frames->n == FT_STACK_FRAMES)
        return;
    if (r->tool == FT_STACK_EUSTACK)
        take_file(text, &inside);
    char *to = frames->text[frames->n];
    snprintf(to, FT_STACK_FRAME_BYTES, "%.*s", FT_STACK_FRAME_BYTES - 1, text);
    frames->inside[frames->n++] = inside;
    for (; *to; to++)
        if (*to < ' ' || *to > '~')
            *to = '?';
}

static void read_frames(struct reading *r, const char *text)
{
    char line[1024];
    bool wanted = false, inside;
    while (*text) {
        size_t len = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)ft_min(len, sizeof line - 1), text);
        text += len + (text[len] == '\n');
        note_library(r, line);
        if (is_header(r, line, &wanted)) {
            if (r->frames.n)
                return;
            continue;
        }
        char *frame = wanted ? frame_of(r, line, &inside) : NULL;
        if (frame)
            add_frame(r, frame, inside);
    }
}

/* ---- the form that is compared --------------------------------------------------------------- */

/* The line behind the file: "train (train.py:12)". */
static void drop_line_number(char *frame)
{
    size_t len = strlen(frame), at = len;
    if (len < 3 || frame[len - 1] != ')')
        return;
    for (at = len - 1; at > 0 && isdigit((unsigned char)frame[at - 1]); at--) {}
    if (at > 0 && at < len - 1 && frame[at - 1] == ':')
        snprintf(frame + at - 1, 2, ")");
}

/* gdb writes arguments and places behind a space and a bracket, outside the brackets of templates.
 */
static void drop_arguments(char *frame)
{
    int depth = 0;
    for (char *c = frame; *c; c++) {
        depth += *c == '<' ? 1 : *c == '>' ? -1 : 0;
        if (depth <= 0 && c > frame && starts(c, " (")) {
            *c = '\0';
            return;
        }
    }
}

/* Versions ("@GLIBC_2.2.5") and copies of the same function. */
static void drop_suffix(char *frame)
{
    static const char *const suffixes[] = {"@",     ".constprop.", ".isra.",    ".part.",
                                           ".cold", ".llvm.",      ".lto_priv."};
    for (size_t i = 0; i < FT_ARRAY_LEN(suffixes); i++) {
        char *at = strstr(frame, suffixes[i]);
        if (at && at > frame)
            *at = '\0';
    }
}

/* Numbers that begin with 0x, which are addresses. */
static void drop_addresses(char *frame)
{
    char *to = frame;
    for (const char *from = frame; *from;) {
        if (starts(from, "0x") && isxdigit((unsigned char)from[2])) {
            from += 2 + strspn(from + 2, "0123456789abcdefABCDEF");
            *to++ = '*';
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

static void normalise(enum ft_stack_source tool, char *frame)
{
    if (tool == FT_STACK_PYSPY) {
        drop_line_number(frame);
    } else {
        if (tool == FT_STACK_GDB)
            drop_arguments(frame);
        drop_suffix(frame);
        if (starts(frame, "__GI_"))
            memmove(frame, frame + 5, strlen(frame + 5) + 1);
    }
    drop_addresses(frame);
}

/* A public function of the library: what is called from there changes from moment to moment. */
static bool is_entry(enum ft_stack_source tool, const char *frame)
{
    if (tool == FT_STACK_PYSPY)
        return false;
    frame += frame[0] == 'p';
    size_t prefix = starts(frame, "nccl") ? 4 : starts(frame, "ftccl") ? 5 : 0;
    return prefix && isupper((unsigned char)frame[prefix]);
}

static void normalise_all(struct frames *frames, enum ft_stack_source tool)
{
    int kept = 0;
    for (int i = 0; i < frames->n; i++) {
        char *frame = frames->text[i];
        normalise(tool, frame);
        if (!*frame || starts(frame, "??") || starts(frame, "*"))
            continue;
        if (frames->inside[i] || is_entry(tool, frame))
            kept = 0;
        if (kept && strcmp(frames->text[kept - 1], frame) == 0)
            continue;
        if (kept != i)
            memcpy(frames->text[kept], frame, FT_STACK_FRAME_BYTES);
        kept++;
    }
    frames->n = kept;
}

static char *join(const struct frames *frames)
{
    size_t size = 1;
    for (int i = 0; i < frames->n; i++)
        size += strlen(frames->text[i]) + 1;
    char *text = malloc(size);
    size_t at = 0;
    for (int i = 0; text && i < frames->n; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? "\n" : "", frames->text[i]);
    if (text && frames->n == 0)
        *text = '\0';
    return text;
}

static int keep(struct ft_stack *out, enum ft_stack_source source, struct frames *frames)
{
    char *shown = join(frames);
    normalise_all(frames, source);
    char *normal = frames->n ? join(frames) : NULL;
    if (shown && normal) {
        *out = (struct ft_stack){source, shown, normal};
        return FT_OK;
    }
    int status = shown && !frames->n ? FT_INVAL : FT_NOMEM;
    free(shown);
    free(normal);
    return status;
}

int ft_stack_read(struct ft_stack *out, enum ft_stack_source tool, const char *text, int pid,
                  int tid)
{
    struct reading *r = malloc(sizeof *r);
    *out = (struct ft_stack){0};
    if (!r)
        return FT_NOMEM;
    *r = (struct reading){.tool = tool, .pid = pid, .tid = tid};
    read_frames(r, text);
    int status = keep(out, tool, &r->frames);
    free(r);
    return status;
}

int ft_stack_of_lines(struct ft_stack *out, enum ft_stack_source source, const char *lines)
{
    *out = (struct ft_stack){source, strdup(lines), strdup(lines)};
    if (out->shown && out->normal)
        return FT_OK;
    ft_stack_free(out);
    return FT_NOMEM;
}

void ft_stack_free(struct ft_stack *stack)
{
    free(stack->shown);
    free(stack->normal);
    *stack = (struct ft_stack){0};
}
