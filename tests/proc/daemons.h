/*
 * Daemons that a test starts, in a folder that goes with the test, and what they answer. For one
 * file of a program.
 */
#ifndef FT_TESTS_PROC_DAEMONS_H
#define FT_TESTS_PROC_DAEMONS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include "tests/proc/proc.h"

namespace
{

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/* Runs a program under a limit. The first argument is the limit: a number of bytes that a file may
 * have, "n" and a number of descriptors, or "-" for none. The program and its arguments follow. */
CHILD(exec)
{
    if (arguments[0] != "-") {
        bool files = arguments[0][0] == 'n';
        rlim_t most = std::stoul(arguments[0].substr(files));
        rlimit limit = {most, most};
        setrlimit(files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &limit);
    }
    std::vector<char *> argv;
    for (size_t i = 1; i < arguments.size(); i++)
        argv.push_back(const_cast<char *>(arguments[i].c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    return 127;
}

struct Folder {
    std::string path;
    Folder()
    {
        char name[] = "/tmp/ft-agent-XXXXXX";
        path = mkdtemp(name);
    }
    ~Folder()
    {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    std::string file(const std::string &name, const std::string &text, mode_t mode = 0600) const
    {
        std::string whole = path + "/" + name;
        fs::create_directories(fs::path(whole).parent_path());
        std::ofstream(whole) << text;
        chmod(whole.c_str(), mode);
        return whole;
    }
};

int dial(const std::string &address)
{
    size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr *>(&to), sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* All that comes until the end, at most for so long. */
std::string read_all(int fd, double seconds)
{
    std::string all;
    char bytes[65536];
    double end = proc::now() + seconds;
    for (ssize_t n = 1; n > 0 && proc::now() < end;) {
        pollfd ready = {fd, POLLIN, 0};
        if (poll(&ready, 1, 100) > 0 && (n = read(fd, bytes, sizeof bytes)) > 0)
            all.append(bytes, static_cast<size_t>(n));
    }
    return all;
}

struct Daemon {
    std::unique_ptr<proc::Child> child;
    std::string address;
    Daemon(const std::string &program, Words options,
           const std::map<std::string, std::string> &env = {}, const std::string &limit = "-")
    {
        Words words = {limit, "./tools/" + program, "--interval", "0.2", "--after", "1"};
        if (std::find(options.begin(), options.end(), "--listen") == options.end())
            options.insert(options.begin(), {"--listen", "127.0.0.1:0"});
        words.insert(words.end(), options.begin(), options.end());
        child = std::make_unique<proc::Child>("exec", words, env);
        std::string line = child->line(20);
        size_t at = line.find("listens on ");
        EXPECT_NE(at, std::string::npos) << program << " says " << line;
        address = at == std::string::npos ? "127.0.0.1:9" : line.substr(at + 11);
    }
    std::string get(const std::string &path) const
    {
        int fd = dial(address);
        if (fd < 0)
            return "";
        std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        if (write(fd, request.data(), request.size()) < 0)
            perror("write");
        std::string answer = read_all(fd, 10);
        close(fd);
        return answer;
    }
    std::string json() const
    {
        return get("/status?format=json");
    }
    /* Asks until the answer has the pattern, and returns it. */
    std::string until(const std::string &pattern, const std::string &path = "/status?format=json",
                      double seconds = 30) const
    {
        std::regex wanted(pattern);
        std::string answer;
        for (double end = proc::now() + seconds; proc::now() < end; usleep(20000))
            if (std::regex_search(answer = get(path), wanted))
                return answer;
        ADD_FAILURE() << "no " << pattern << " in " << address << path << ":\n" << answer;
        return answer;
    }
    int stop() const
    {
        child->signal(SIGTERM);
        return child->wait(20);
    }
};

} // namespace

#endif
