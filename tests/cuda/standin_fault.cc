/*
 * The stand-in driver's faults: calls that fail when a test says so.
 */
#include "standin.h"
#include "standin_graph.h"

#include <map>
#include <mutex>
#include <string>

static std::mutex fault_lock;
static std::map<std::string, std::pair<CUresult, int>> faults;

CUresult standin::fault(const char *call)
{
    std::lock_guard<std::mutex> hold(fault_lock);
    auto it = faults.find(call);
    if (it == faults.end())
        return CUDA_SUCCESS;
    if (it->second.second-- > 0)
        return CUDA_SUCCESS;
    CUresult result = it->second.first;
    faults.erase(it);
    return result;
}

extern "C" __attribute__((visibility("default"))) void standin_fail(const char *call,
                                                                    CUresult result, int after)
{
    std::lock_guard<std::mutex> hold(fault_lock);
    faults[call] = {result, after};
}
