/*
 * Whether the tests run under sanitizers, which make them many times slower. What only compares
 * data does less there: other builds compare all of it.
 */
#ifndef FT_TESTS_SANITIZER_H
#define FT_TESTS_SANITIZER_H

#include <cstdlib>
#include <cstring>

/* Of any kind, or of the one that is named: "thread", "address". */
inline bool is_sanitized(const char *by = "")
{
    const char *sanitizer = std::getenv("FT_SANITIZER");
    return sanitizer && *sanitizer && std::strstr(sanitizer, by);
}

#endif
