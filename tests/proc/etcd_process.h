/*
 * A real etcd that a test starts. For one file of a program, after daemons.h.
 */
#ifndef FT_TESTS_PROC_ETCD_PROCESS_H
#define FT_TESTS_PROC_ETCD_PROCESS_H

#include "tests/proc/daemons.h"

extern "C" {
#include "tools/master/etcd.h"
}

namespace
{

/* Where etcd is; "": it is not installed. */
inline std::string etcd_path()
{
    for (const char *path : {"/usr/bin/etcd", "/usr/local/bin/etcd"})
        if (access(path, X_OK) == 0)
            return path;
    return "";
}

#define NEEDS_ETCD()                                                        \
    do {                                                                    \
        if (etcd_path().empty())                                            \
            GTEST_SKIP() << "etcd (Debian's etcd-server) is not installed"; \
    } while (0)

/* Two ports that nobody has. Another process may take them before etcd does: then another pair is
 * tried. */
inline std::vector<int> two_ports()
{
    std::vector<int> ports, fds;
    for (int i = 0; i < 2; i++) {
        sockaddr_in at = {};
        socklen_t len = sizeof at;
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (bind(fds[i], reinterpret_cast<sockaddr *>(&at), sizeof at) != 0 ||
            getsockname(fds[i], reinterpret_cast<sockaddr *>(&at), &len) != 0)
            ADD_FAILURE() << "no port: " << strerror(errno);
        ports.push_back(ntohs(at.sin_port));
    }
    for (int fd : fds)
        close(fd);
    return ports;
}

struct Etcd {
    Folder folder;
    std::string address; /* HOST:PORT of clients */
    std::unique_ptr<proc::Child> child;
    /* quota_bytes: of its database; 0: its default. */
    explicit Etcd(size_t quota_bytes = 0)
    {
        for (int attempt = 0; attempt < 5; attempt++) {
            std::vector<int> ports = two_ports();
            address = "127.0.0.1:" + std::to_string(ports[0]);
            words = command(ports, quota_bytes);
            if (start())
                return;
        }
        ADD_FAILURE() << "etcd does not start";
    }
    bool start()
    {
        child = std::make_unique<proc::Child>("exec", words);
        for (double end = proc::now() + 30; proc::now() < end;) {
            if (healthy())
                return true;
            if (child->wait(0.05) != -1)
                return false; /* its port was taken */
        }
        return false;
    }
    bool healthy() const
    {
        int fd = dial(address);
        if (fd < 0)
            return false;
        std::string request = "GET /health HTTP/1.0\r\nHost: x\r\n\r\n";
        bool sent = write(fd, request.data(), request.size()) > 0;
        std::string answer = sent ? read_all(fd, 2) : "";
        close(fd);
        return answer.find("\"true\"") != std::string::npos;
    }
    /* Until it takes no more; it needs a quota. */
    void fill() const
    {
        struct etcd *e = nullptr;
        const std::string large(200000, 'x');
        int64_t lease = 0, revision = 0;
        char holder[ETCD_VALUE_BYTES];
        ASSERT_EQ(etcd_open((url() + "/full").c_str(), 20000, &e), FT_OK);
        EXPECT_EQ(etcd_grant(e, 3600, &lease), FT_OK) << ft_fail_text();
        EXPECT_EQ(etcd_claim(e, lease, "x", &revision, holder), FT_OK) << ft_fail_text();
        int status = FT_OK;
        for (int i = 0; i < 100 && status == FT_OK; i++) {
            bool held;
            status = etcd_save(e, revision, "large", large.c_str(), &held);
        }
        EXPECT_EQ(status, FT_PEER);
        etcd_close(e);
    }
    std::string url() const
    {
        return "etcd://" + address;
    }
    void die() const
    {
        child->signal(SIGKILL);
        child->wait();
    }

  private:
    Words words;
    Words command(const std::vector<int> &ports, size_t quota_bytes) const
    {
        std::string client = "http://" + address;
        std::string peer = "http://127.0.0.1:" + std::to_string(ports[1]);
        Words all = {"-",
                     etcd_path(),
                     "--data-dir",
                     folder.path + "/data",
                     "--logger",
                     "zap",
                     "--log-outputs",
                     folder.path + "/log",
                     "--listen-client-urls",
                     client,
                     "--advertise-client-urls",
                     client,
                     "--listen-peer-urls",
                     peer,
                     "--initial-advertise-peer-urls",
                     peer,
                     "--initial-cluster",
                     "default=" + peer};
        if (quota_bytes > 0)
            all.insert(all.end(), {"--quota-backend-bytes", std::to_string(quota_bytes)});
        return all;
    }
};

} // namespace

#endif
