#include "tests/proc/shm.h"

#include "telemetry/format.h"

#include <cctype>
#include <cstring>
#include <fstream>
#include <sstream>

#include <dirent.h>
#include <unistd.h>

namespace proc
{

namespace
{

/* Field 22 of the line; the second is a name in brackets that may contain blanks. */
uint64_t start_of_this_process()
{
    std::ifstream in("/proc/self/stat");
    std::string line;
    std::getline(in, line);
    std::istringstream rest(line.substr(line.rfind(')') + 1));
    std::string word;
    for (int field = 3; field <= 22; field++)
        rest >> word;
    return std::stoull(word);
}

bool is_number_at(const std::string &text, size_t at, size_t len)
{
    bool digit_before = at > 0 && isdigit(text[at - 1]);
    bool digit_after = at + len < text.size() && isdigit(text[at + len]);
    return !digit_before && !digit_after;
}

/* A killed process leaves its file, and numbers of processes are used again. */
bool is_older_than_this_process(const std::string &name)
{
    ft_tm_header header;
    std::ifstream in("/dev/shm/" + name, std::ios::binary);
    return in.read(reinterpret_cast<char *>(&header), sizeof header) &&
           memcmp(header.magic, FT_TM_MAGIC, sizeof header.magic) == 0 &&
           header.pid_start < start_of_this_process();
}

} // namespace

std::vector<std::string> shm_of(pid_t pid)
{
    std::vector<std::string> names;
    std::string number = std::to_string(pid);
    DIR *folder = opendir("/dev/shm");
    while (dirent *entry = folder ? readdir(folder) : nullptr) {
        std::string name = entry->d_name;
        size_t at = name.find(number);
        if (at != std::string::npos && name.find("ftccl") != std::string::npos &&
            is_number_at(name, at, number.size()) && !is_older_than_this_process(name))
            names.push_back(name);
    }
    if (folder)
        closedir(folder);
    return names;
}

} // namespace proc
