/* What processes have left in /dev/shm. */
#ifndef FT_TESTS_PROC_SHM_H
#define FT_TESTS_PROC_SHM_H

#include <string>
#include <vector>

#include <sys/types.h>

namespace proc
{

/* FTCCL's names in /dev/shm that contain the number of the process, which is this one or a
 * descendant. Telemetry files of dead processes that had the same number are left out. */
std::vector<std::string> shm_of(pid_t pid);

} // namespace proc

#endif
