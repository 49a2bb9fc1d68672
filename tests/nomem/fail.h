/*
 * Lets one call of the library fail that takes a resource: the n-th call of its class, once. The
 * linker replaces the system's functions by those of fail.cc (--wrap) in the library's own objects,
 * so calls of the C library and of gtest are not counted.
 */
#ifndef FT_TESTS_NOMEM_FAIL_H
#define FT_TESTS_NOMEM_FAIL_H

#include <string>

namespace nomem
{

enum Class { MEMORY, MAP, SPACE, DESCRIPTOR, WATCH, THREAD, CLASSES };
extern const char *const class_names[CLASSES];

/* From now on calls are counted, and the n-th call of the class fails. n 0: none fails. */
void arm(Class which, long n);
void disarm();
long counted(Class which);
/* The call that failed, as "malloc nomem_test(+0x1234)"; "": none has failed. */
std::string failed_call();

} // namespace nomem

#endif
