// A planted table of source ports, in place of what a prober finds out.
#ifndef FT_TESTS_TCP_FINDER_H
#define FT_TESTS_TCP_FINDER_H

#include <unistd.h>
#include <vector>
extern "C" {
#include "transport/transport.h"
}

static const int kClasses = 4, kPortsOfClass = 8;

// What is known of ports; it also counts what it is asked.
struct Finder {
    ft_port_finder base = {};
    std::vector<ft_path> table;
    int nclasses = kClasses, status = FT_OK;
    int finds = 0, forgets = 0, stops = 0;

    Finder()
    {
        base.find = [](ft_port_finder *f, const ft_net_address *, const ft_net_address *,
                       ft_ports *out) {
            Finder *me = reinterpret_cast<Finder *>(f);
            me->finds++;
            *out = {me->table.data(), (int)me->table.size(), me->nclasses};
            return me->status == FT_NOTSUP ? ft_fail(FT_NOTSUP, "planted") : me->status;
        };
        base.forget = [](ft_port_finder *f, const ft_net_address *, const ft_net_address *) {
            Finder *me = reinterpret_cast<Finder *>(f);
            me->forgets++;
            me->status = FT_AGAIN;
            return true;
        };
        base.stop = [](ft_port_finder *f) { reinterpret_cast<Finder *>(f)->stops++; };
        // ports of this process, as far as that is possible
        plant((uint16_t)(61000 + getpid() * kClasses * kPortsOfClass % 4000));
    }
    // Classes change from port to port.
    void plant(uint16_t first)
    {
        table.clear();
        for (int i = 0; i < kClasses * kPortsOfClass; i++)
            table.push_back({(uint16_t)(first + i), (int16_t)(i % kClasses)});
    }
    int class_of(uint16_t port) const
    {
        for (const ft_path &p : table)
            if (p.source_port == port)
                return p.class_index;
        return FT_PATH_UNKNOWN;
    }
};

#endif
