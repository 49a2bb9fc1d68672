/*
 * The log: one line a call, to stderr or the file of FTCCL_DEBUG_FILE, in NCCL's form
 * "host:pid:tid [rank] FTCCL LEVEL subsystem: text". Never on stdout unless the user names /dev/stdout.
 */
#include "base/base.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const level_names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file; /* opened once, under the lock; stderr when no file was asked for or it cannot be opened */

static atomic_int cached = -1;     /* the level; relaxed: every thread computes the same */

void ft_log_reset(void)
{
    pthread_mutex_lock(&lock);
    if (file) fclose(file);
    file = NULL;
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&cached, -1, memory_order_relaxed);
}

bool ft_log_on(enum ft_log_level level)
{
    int on = atomic_load_explicit(&cached, memory_order_relaxed);
    if (on < 0) {
        /* While the parameters are being read their own warnings pass: FT_LOG_WARN is the default. */
        static _Thread_local bool inside;
        if (inside) return level <= FT_LOG_WARN;
        inside = true;
        const char *text = ft_param_str(FT_PARAM_DEBUG);
        inside = false;
        on = FT_LOG_WARN;
        for (int i = 0; i < (int)FT_ARRAY_LEN(level_names); i++)
            if (!strcasecmp(text, level_names[i])) on = i;
        if (!strcasecmp(text, "ABORT")) on = FT_LOG_TRACE;
        atomic_store_explicit(&cached, on, memory_order_relaxed);
    }
    return (int)level <= on;
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
        if (p[0] == '%' && p[1] == 'h') piece = host, p++;
        else if (p[0] == '%' && p[1] == 'p') snprintf(pid, sizeof pid, "%d", (int)getpid()), p++;
        int put = snprintf(path + n, sizeof path - n, "%s", piece);
        n = ft_min(n + (size_t)put, sizeof path - 1);
    }
    path[n] = '\0';
    file = fopen(path, "ae");
    if (file) setvbuf(file, NULL, _IOLBF, 0);
}

void ft_log_write(enum ft_log_level level, const char *subsys, int rank, const char *fmt, ...)
{
    char text[1400], where[24] = "", host[64] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (rank >= 0) snprintf(where, sizeof where, " [%d]", rank);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    static _Thread_local bool inside;
    if (inside) return;
    inside = true;
    const char *pattern = level <= FT_LOG_WARN && !file ? "" : ft_param_str(FT_PARAM_DEBUG_FILE);
    pthread_mutex_lock(&lock);
    if (!file && *pattern) open_file(pattern);
    fprintf(file ? file : stderr, "%s:%d:%d%s FTCCL %s %s: %s\n", host, (int)getpid(), (int)syscall(SYS_gettid), where,
            level_names[level], subsys, text);
    pthread_mutex_unlock(&lock);
    inside = false;
}
