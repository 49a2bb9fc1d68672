#ifndef FT_TESTS_SLOTS_RACE_H
#define FT_TESTS_SLOTS_RACE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Returns in how many rounds neither side saw the other. In a round one side publishes, or gives
 * back, while the other goes to sleep. */
int slots_race(bool gives, int rounds);
#ifdef __cplusplus
}
#endif

#endif
