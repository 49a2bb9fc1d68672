/* What tests of probing probe: this machine, with three ports. */
#ifndef FT_TESTS_PATH_CONFIG_H
#define FT_TESTS_PATH_CONFIG_H

#include <sys/socket.h>

extern "C" {
#include "path/path.h"
}

inline ft_path_config path_to_this_machine()
{
    ft_path_config config = {};
    config.env = ft_env_real();
    config.to.family = AF_INET;
    config.to.ip[0] = 127;
    config.to.ip[3] = 1;
    config.to.port = 9;
    config.nports = 3;
    return config;
}

#endif
