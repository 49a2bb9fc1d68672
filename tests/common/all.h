/* What nearly every test in C++ includes, precompiled once in a build (tests/Makefile.frag says
 * how). It stands in front of each googletest program; a file still includes what it uses. */
#ifndef FT_TESTS_ALL_H
#define FT_TESTS_ALL_H
#ifdef __cplusplus /* C files of a googletest program get the same flags */
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
