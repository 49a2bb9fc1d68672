/*
 * The log. Each call writes one line to stderr or to the file FTCCL_DEBUG_FILE. The form is
 * "host:pid:tid [rank] FTCCL LEVEL subsystem: text", or NCCL's form in libnccl.so.2: "host:pid:tid
 * [device] NCCL LEVEL text". Nothing goes to stdout unless the user names /dev/stdout.
 */
#include "base/base.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const level_names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* opened once, under the lock; NULL (stderr) if no file was asked for or it cannot be opened */
static FILE *file;

/* the level, -1: not read; relaxed, because every thread computes the same value */
static atomic_int cached = -1;
static atomic_int like_nccl; /* relaxed: each line has one form or the other */

/* The child makes a new lock: the thread that held the old one at fork does not exist in the
 * child. */
static void after_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* Runs when the library is loaded. To do it at the first line would be too late if another thread
 * forks then. */
__attribute__((constructor)) static void install(void)
{
    pthread_atfork(NULL, NULL, after_in_child);
}

void ft_log_reset(void)
{
    pthread_mutex_lock(&lock);
    if (file)
        fclose(file);
    file = NULL;
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&cached, -1, memory_order_relaxed);
}

bool ft_log_on(enum ft_log_level level)
{
    int on = atomic_load_explicit(&cached, memory_order_relaxed);
    if (on < 0) {
        /* The parameters are being read: let their warnings through. */
        if (ft_params_loading())
            return level <= FT_LOG_WARN;
        const char *text = ft_param_str(FT_PARAM_DEBUG);
        on = atomic_load_explicit(&like_nccl, memory_order_relaxed) ? FT_LOG_NONE : FT_LOG_WARN;
        for (int i = 0; i < (int)FT_ARRAY_LEN(level_names); i++)
            if (!strcasecmp(text, level_names[i]))
                on = i;
        if (!strcasecmp(text, "ABORT"))
            on = FT_LOG_TRACE;
        atomic_store_explicit(&cached, on, memory_order_relaxed);
    }
    return (int)level <= on;
}

void ft_log_like_nccl(void)
{
    atomic_store_explicit(&like_nccl, 1, memory_order_relaxed);
    ft_log_reset();
}

/* Tells whether a comma-separated list contains subsys or ALL. A list that begins with ^ excludes
 * its names. */
static bool is_listed(const char *list, const char *subsys)
{
    bool invert = *list == '^';
    for (const char *name = list + invert; *name;) {
        size_t len = strcspn(name, ",");
        if ((len == strlen(subsys) && !strncasecmp(name, subsys, len)) ||
            (len == 3 && !strncasecmp(name, "ALL", len)))
            return !invert;
        name += len + (name[len] == ',');
    }
    return invert;
}

bool ft_log_shows(enum ft_log_level level, const char *subsys)
{
    if (!ft_log_on(level))
        return false;
    if (level < FT_LOG_INFO || ft_params_loading())
        return true;
    const char *list = ft_param_str(FT_PARAM_DEBUG_SUBSYS);
    return is_listed(*list ? list : "^COLL", subsys);
}

static void open_file(const char *pattern)
{
    char path[1024], host[256] = "";
    size_t n = 0;
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    for (const char *p = pattern; *p && n + 1 < sizeof path; p++) {
        char pid[16] = {*p, '\0'};
        const char *piece = pid;
        if (p[0] == '%' && p[1] == 'h')
            piece = host, p++;
        else if (p[0] == '%' && p[1] == 'p')
            snprintf(pid, sizeof pid, "%d", (int)getpid()), p++;
        int put = snprintf(path + n, sizeof path - n, "%s", piece);
        n = ft_min(n + (size_t)put, sizeof path - 1);
    }
    path[n] = '\0';
    file = fopen(path, "ae");
    if (file)
        setvbuf(file, NULL, _IOLBF, 0);
}

/* NCCL prints the device of the calling thread; FTCCL always prints 0. Lines of subsystem "coll"
 * have no prefix, so that programs that parse NCCL's log can parse them. */
static void write_like_nccl(FILE *to, const char *where, enum ft_log_level level,
                            const char *subsys, const char *text)
{
    char prefix[24] = "";
    for (size_t i = 0; subsys[i] && i + 4 < sizeof prefix && strcmp(subsys, "coll"); i++) {
        prefix[i] = (char)toupper((unsigned char)subsys[i]);
        memcpy(prefix + i + 1, " : ", 4);
    }
    if (level == FT_LOG_VERSION)
        fprintf(to, "%s\n", text);
    else
        fprintf(to, "%s [0] NCCL %s %s%s\n", where, level_names[level], prefix, text);
}

void ft_log_write(enum ft_log_level level, const char *subsys, int rank, const char *fmt, ...)
{
    static _Thread_local bool inside;
    char text[1400], host[64] = "", where[128], who[24] = "";
    if (inside || !ft_log_shows(level, subsys))
        return;
    bool nccl = atomic_load_explicit(&like_nccl, memory_order_relaxed);
    if (rank >= 0)
        snprintf(who, sizeof who, nccl ? "rank %d: " : " [%d]", rank);
    int n = snprintf(text, sizeof text, "%s", nccl ? who : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, args);
    va_end(args);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    snprintf(where, sizeof where, "%s:%d:%d", host, (int)getpid(), (int)syscall(SYS_gettid));
    inside = true;
    const char *pattern = ft_params_loading() ? "" : ft_param_str(FT_PARAM_DEBUG_FILE);
    pthread_mutex_lock(&lock);
    if (!file && *pattern)
        open_file(pattern);
    if (nccl)
        write_like_nccl(file ? file : stderr, where, level, subsys, text);
    else
        fprintf(file ? file : stderr, "%s%s FTCCL %s %s: %s\n", where, who, level_names[level],
                subsys, text);
    pthread_mutex_unlock(&lock);
    inside = false;
}
