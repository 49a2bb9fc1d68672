/*
 * Other programs on a rank's processor, for tests of ranks that are slow.
 */
#ifndef FT_TESTS_HOGS_H
#define FT_TESTS_HOGS_H

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace proc
{

/* Programs that compute for ever on one processor. */
struct Hogs {
    std::vector<pid_t> pids;
    Hogs(int n, int cpu)
    {
        for (int i = 0; i < n; i++) {
            pids.push_back(fork());
            if (pids.back() == 0) {
                pin(0, cpu);
                for (pid_t parent = getppid(); getppid() == parent;) {}
                _exit(0);
            }
        }
    }
    ~Hogs()
    {
        for (pid_t pid : pids) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
    }
    static void pin(pid_t thread, int cpu)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(size_t(cpu), &set);
        sched_setaffinity(thread, sizeof set, &set);
    }
};

/* All threads of a rank run on one processor. With `first`, and the right to do so, they run there
 * before the other programs of the machine, which may be busy with other tests. */
inline void place(pid_t pid, int cpu, bool first)
{
    for (const auto &task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        pid_t thread = std::stoi(task.path().filename());
        Hogs::pin(thread, cpu);
        if (first)
            setpriority(PRIO_PROCESS, id_t(thread), -15);
    }
}

/* The processors on which this process may run. */
inline std::vector<int> cpus()
{
    cpu_set_t set;
    std::vector<int> all;
    sched_getaffinity(0, sizeof set, &set);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(size_t(i), &set))
            all.push_back(i);
    return all;
}

} // namespace proc

#endif
