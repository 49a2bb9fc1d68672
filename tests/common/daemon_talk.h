/*
 * One side of a connection that carries messages of daemons (base/wire.h), made by hand: the
 * handshake, then messages. No call blocks.
 */
#ifndef FT_TESTS_COMMON_DAEMON_TALK_H
#define FT_TESTS_COMMON_DAEMON_TALK_H

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

extern "C" {
#include "transport/transport.h"

#include "base/auth.h"
#include "base/wire.h"
}

namespace talk
{

using Bytes = std::vector<unsigned char>;

inline Bytes number(uint64_t value, int bytes)
{
    Bytes out(static_cast<size_t>(bytes));
    unsigned char *at = out.data();
    put_bytes(&at, value, bytes);
    return out;
}

inline Bytes operator+(Bytes a, const Bytes &b)
{
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

struct Message {
    unsigned service = 0, type = 0;
    Bytes bytes;
};

class Talk
{
  public:
    int fd = -1;
    int status = FT_AGAIN; // of the handshake

    Talk() = default;
    Talk(const Talk &) = delete;
    ~Talk()
    {
        end();
    }
    void end()
    {
        if (fd >= 0)
            close(fd);
        fd = -1;
        status = FT_AGAIN;
        in.clear();
    }
    // The socket is connected. It is closed in the end.
    void start(int socket, bool initiator, const unsigned char key[FT_SECRET_BYTES])
    {
        end();
        fd = socket;
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        const int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        ft_auth_start(&auth, ft_env_real(), fd, initiator, key, 77, 0, FT_PURPOSE_SERVICE,
                      FT_DAEMON_VERSION, ft_now_ns(ft_env_real()) + 20000000000u);
    }
    bool is_open()
    {
        if (fd >= 0 && status == FT_AGAIN)
            status = ft_auth_turn(&auth);
        return fd >= 0 && status == FT_OK;
    }
    // False: not all of it went out.
    bool say(unsigned type, const Bytes &bytes, unsigned service = 2) const
    {
        return say_raw(number(bytes.size(), 4) + number(service, 2) + number(type, 2) + bytes);
    }
    bool say_raw(const Bytes &all) const
    {
        return send(fd, all.data(), all.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(all.size());
    }
    // False: no message is complete.
    bool hear(Message &out)
    {
        unsigned char some[4096];
        if (!is_open())
            return false;
        for (ssize_t n; (n = recv(fd, some, sizeof some, 0)) >= 0;) {
            in.insert(in.end(), some, some + n);
            ended = n == 0;
            if (n == 0)
                break;
        }
        if (in.size() < FT_DAEMON_HEADER_BYTES)
            return false;
        const unsigned char *at = in.data();
        const size_t len = get32(&at);
        if (in.size() < FT_DAEMON_HEADER_BYTES + len)
            return false;
        out.service = get16(&at);
        out.type = get16(&at);
        out.bytes.assign(at, at + len);
        in.erase(in.begin(), in.begin() + static_cast<long>(FT_DAEMON_HEADER_BYTES + len));
        return true;
    }
    bool ended = false; // the other side closed it, as seen when it was read last

  private:
    ft_auth auth = {};
    Bytes in;
};

} // namespace talk

#endif
