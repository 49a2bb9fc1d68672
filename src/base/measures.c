/*
 * Names of what threads of users call.
 */
#include "base/base.h"

const char *ft_thread_call_name(unsigned call)
{
    static const char *const name[FT_THREAD_END - FT_THREAD_OTHER] = {
#define X(name, text) [FT_THREAD_##name - FT_THREAD_OTHER] = text,
        FT_THREAD_CALLS(X)
#undef X
    };
    if (call >= FT_THREAD_KIND && call < FT_THREAD_KIND + FT_KINDS)
        return ft_kind_name((enum ft_kind)(call - FT_THREAD_KIND));
    bool other = call > FT_THREAD_OTHER && call < FT_THREAD_END;
    return other ? name[call - FT_THREAD_OTHER] : "?";
}
