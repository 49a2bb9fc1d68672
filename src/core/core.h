/*
 * core: communicators, operations, and the engine that turns them, in three floors on which calls
 * go down only: group -> run -> engine. Other folders include this header.
 */
#ifndef FT_CORE_H
#define FT_CORE_H

#include "core/group/group.h"

#endif
