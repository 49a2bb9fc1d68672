/* The seed of the campaigns about slow jobs: FT_SEED, or 1. */
#ifndef FT_TEST_DIAGNOSE_SLOW_H
#define FT_TEST_DIAGNOSE_SLOW_H

#include <cstdint>

uint64_t slow_seed();

#endif
