/*
 * Property: no control messages of an error queue make their reader crash, loop or read beyond
 * their end, and an answer has an address. Method: the first two bytes say the family, the flags
 * and the length of the name; the rest is the name, then the control messages.
 */
#include "path/probe.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const struct ft_net_address to = {.family = data[0] & 1 ? AF_INET6 : AF_INET};
    const size_t name = ft_min(data[1] % 32u, size - 2), control = size - 2 - name;
    unsigned char by[16];
    /* copies of their exact size, so that a sanitizer sees reads beyond them */
    unsigned char *at_name = malloc(name + 1), *at_control = malloc(control + 1);
    if (at_name == NULL || at_control == NULL)
        abort();
    memcpy(at_name, data + 2, name);
    memcpy(at_control, data + 2 + name, control);
    /* half of them are about the right packet */
    if (data[0] & 2 && name >= 16) {
        memset(at_name, 0, name);
        at_name[0] = (unsigned char)to.family;
    }
    struct msghdr msg = {.msg_name = at_name,
                         .msg_namelen = (socklen_t)name,
                         .msg_control = at_control,
                         .msg_controllen = control,
                         .msg_flags = data[0] & 4 ? MSG_CTRUNC : 0};
    memset(by, 0xee, sizeof(by));
    const enum ft_path_answer answer = ft_path_read_answer(&msg, &to, by);
    if (answer != FT_PATH_NOTHING && answer != FT_PATH_ROUTER && answer != FT_PATH_REFUSAL)
        abort();
    if (answer == FT_PATH_NOTHING && by[0] != 0xee)
        abort();
    free(at_name);
    free(at_control);
    return 0;
}
