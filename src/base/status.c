/*
 * Statuses, and the sentence that explains the last failure in a thread. Any code may call this. It
 * has one small buffer per thread and allocates nothing.
 */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>

static _Thread_local char sentence[FT_FAIL_BYTES];

const char *ft_status_text(int status)
{
    switch (status) {
#define X(name, value, lost, text) \
    case value:                    \
        return text;
        FT_STATUSES(X)
#undef X
    default:
        return "unknown status";
    }
}

enum ft_lost ft_status_lost(int status)
{
    switch (status) {
#define X(name, value, lost, text) \
    case value:                    \
        return FT_LOST_##lost;
        FT_STATUSES(X)
#undef X
    default:
        return FT_LOST_PROCESS;
    }
}

int ft_status_of_errno(int err)
{
    switch (err) {
    case 0:
        return FT_OK;
    case EAGAIN:
    case EINTR:
    case EINPROGRESS:
        return FT_AGAIN;
    case ENOMEM:
        return FT_NOMEM;
    case EMFILE:
    case ENFILE:
        return FT_NOFILE;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return FT_NOSPACE;
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ENOTCONN:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
        return FT_LINK;
    case ETIMEDOUT:
        return FT_TIMEOUT;
    default:
        return FT_SYSTEM;
    }
}

int ft_fail(int status, const char *fmt, ...)
{
    const int err = errno; /* callers may still want to know it */
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    errno = err;
    return status;
}

const char *ft_fail_text(void)
{
    return sentence;
}

void ft_fail_clear(void)
{
    sentence[0] = '\0';
}

void ft_text_clean(char *text, size_t len_bytes)
{
    text[len_bytes - 1] = '\0';
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}
