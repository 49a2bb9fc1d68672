/*
 * The coordinator of managed membership that ftccl-run has for its ranks: one thread, which waits
 * on a port of the loopback interface. Ranks find it by FTCCL_COORDINATOR and prove themselves with
 * FTCCL_SECRET, which is made here unless there is one.
 */
#include "run.h"

#include "base/auth.h"
#include "membership/managed.h"

#include <sodium.h>
#include <stdlib.h>

static struct ft_coordinator *coordinator;

static bool has_secret(void)
{
    return *ft_param_str(FT_PARAM_SECRET) || *ft_param_str(FT_PARAM_SECRET_FILE);
}

static void make_secret(void)
{
    unsigned char bytes[FT_SECRET_BYTES];
    char text[2 * FT_SECRET_BYTES + 1];
    ft_random_secret(bytes);
    sodium_bin2hex(text, sizeof text, bytes, sizeof bytes);
    if (setenv("FTCCL_SECRET", text, 1))
        run_die("out of memory");
    ft_params_reload();
    sodium_memzero(bytes, sizeof bytes);
    sodium_memzero(text, sizeof text);
}

void run_coordinator_start(bool must)
{
    unsigned char secret[FT_SECRET_BYTES], key[FT_SECRET_BYTES];
    char address[FT_NET_TEXT_BYTES];
    if (*ft_param_str(FT_PARAM_COORDINATOR))
        return;
    if (!has_secret())
        make_secret();
    int status = ft_secret_of_job("there is a coordinator,", secret);
    if (!status) {
        ft_auth_derive(key, secret, "daemons", 0);
        status = ft_coordinator_start("127.0.0.1:0", key, address, &coordinator);
    }
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(key, sizeof key);
    if (status && must)
        run_die("cannot start a coordinator: %s", ft_fail_text());
    if (status)
        fprintf(stderr, "ftccl-run: no coordinator for managed membership: %s\n", ft_fail_text());
    else if (setenv("FTCCL_COORDINATOR", address, 1))
        run_die("out of memory");
}

int run_coordinator_members(void)
{
    return coordinator ? ft_coordinator_members(coordinator) : -1;
}

void run_coordinator_stop(void)
{
    if (coordinator)
        ft_coordinator_stop(coordinator);
    coordinator = NULL;
}
