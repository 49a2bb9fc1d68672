/* What nearly every C++ test includes, precompiled once per build (see tests/Makefile.frag). It is
 * included before each googletest program; a file still includes what it uses. */
#ifndef FT_TESTS_ALL_H
#define FT_TESTS_ALL_H
#ifdef __cplusplus /* C files of a googletest program are compiled with the same flags */
#include <config.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>
#endif

#endif
