/*
 * Takes a processor away from a rank: by a control group, of version 1 or 2, or by other programs
 * on the one to which it is bound.
 */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/proc/diagnose_faults.h"

namespace faults
{
namespace
{

bool write_to(const std::string &path, const std::string &text)
{
    std::ofstream out(path);
    out << text << std::flush;
    return out.good();
}

/* The group of this process in which quotas can be set. version 1: the controller has a tree of its
 * own. "": there is none. */
std::string parent_group(bool *second)
{
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        size_t a = line.find(':'), b = line.find(':', a + 1);
        std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",",
                    path = line.substr(b + 1);
        *second = controllers == ",,";
        std::string folder = (*second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu") + path;
        std::ifstream enabled(folder + "/cgroup.subtree_control");
        std::stringstream words;
        words << enabled.rdbuf();
        bool has = *second ? (" " + words.str()).find(" cpu") != std::string::npos
                           : controllers.find(",cpu,") != std::string::npos;
        if (has && access(folder.c_str(), W_OK) == 0)
            return folder;
    }
    return "";
}

void each_thread(pid_t pid, const std::function<void(pid_t)> &fn)
{
    DIR *list = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
    while (dirent *entry = list ? readdir(list) : nullptr)
        if (atoi(entry->d_name) > 0)
            fn(atoi(entry->d_name));
    if (list)
        closedir(list);
}

/* All threads of a process on these processors. */
void bind_to(pid_t pid, const cpu_set_t &set)
{
    each_thread(pid, [&](pid_t tid) { sched_setaffinity(tid, sizeof set, &set); });
}

} // namespace

/* Then all ranks get little. */
std::string why_crowded()
{
    double load = 0;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&load, 1) != 1 || load <= 2 * static_cast<double>(processors))
        return "";
    char text[128];
    snprintf(text, sizeof text,
             "not injected: other programs use the processors (load %.0f on %ld)", load,
             processors);
    return text;
}

std::string quota_group(uint64_t seed, std::string *missing)
{
    bool second;
    std::string parent = parent_group(&second);
    std::string group = parent + "/ftccl" + std::to_string(getpid()) + "-" + std::to_string(seed);
    if (parent.empty() || mkdir(group.c_str(), 0755) != 0) {
        *missing = "no control group with a quota of the processor can be made";
        return "";
    }
    bool limited = second ? write_to(group + "/cpu.max", "5000 100000")
                          : write_to(group + "/cpu.cfs_period_us", "100000") &&
                                write_to(group + "/cpu.cfs_quota_us", "5000");
    if (!limited)
        *missing = "a control group takes no quota";
    return group;
}

bool give_quota(const std::string &group, pid_t pid)
{
    return write_to(group + "/cgroup.procs", std::to_string(pid));
}

void drop_quota(const std::string &group, pid_t pid)
{
    if (group.empty())
        return;
    write_to(group.substr(0, group.rfind('/')) + "/cgroup.procs", std::to_string(pid));
    rmdir(group.c_str());
}

std::vector<pid_t> crowd_processor(const std::vector<int> &pids, pid_t victim, int hogs)
{
    cpu_set_t all, one, rest;
    std::vector<pid_t> started;
    sched_getaffinity(0, sizeof all, &all);
    int last = CPU_SETSIZE - 1;
    while (last > 0 && !CPU_ISSET(last, &all))
        last--;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    rest = all;
    CPU_CLR(last, &rest);
    if (CPU_COUNT(&rest) == 0)
        return started;
    for (int pid : pids)
        bind_to(pid, pid == victim ? one : rest);
    for (int i = 0; i < hogs; i++) {
        pid_t hog = fork();
        if (hog == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            sched_setaffinity(0, sizeof one, &one);
            for (volatile unsigned n = 0;; n = n + 1) {}
        }
        if (hog > 0)
            started.push_back(hog);
    }
    return started;
}

void end_hogs(const std::vector<pid_t> &hogs)
{
    for (pid_t hog : hogs) {
        kill(hog, SIGKILL);
        waitpid(hog, nullptr, 0);
    }
}

} // namespace faults
