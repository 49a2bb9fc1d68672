/*
 * Loads libibverbs when a process first wants it. A machine without RDMA devices never does: the
 * kernel's list of devices is looked at before.
 */
#include "transport/verbs/verbs.h"

#include <dirent.h>
#include <dlfcn.h>
#include <string.h>

static struct verbs_lib lib;
static int status;
static char why[256];

static bool kernel_has_devices(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    bool found = false;
    if (!dir)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir));)
        found = entry->d_name[0] != '.';
    closedir(dir);
    return found;
}

static bool take(void *library, const char *name, void *pointer_out)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        snprintf(why, sizeof why, "libibverbs.so.1 has no %s: it is older than rdma-core 30", name);
        return false;
    }
    memcpy(pointer_out, &symbol, sizeof symbol);
    return true;
}

static bool take_all(void *library)
{
    bool ok = true;
#define X(type, name, arguments) ok = ok && take(library, "ibv_" #name, &lib.name);
    VERBS_CALLS(X)
#undef X
    return ok && take(library, "_ibv_query_gid_ex", &lib.query_gid_ex);
}

static void load(void)
{
    status = FT_NOTSUP;
    if (!kernel_has_devices()) {
        snprintf(why, sizeof why, "this machine has no RDMA device (/sys/class/infiniband)");
        return;
    }
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why, sizeof why, "there are RDMA devices, but libibverbs cannot be loaded: %s",
                 dlerror());
    else if (take_all(library))
        status = FT_OK;
    else
        dlclose(library);
    /* Otherwise the library's own queues would be copied on a write after a fork. It is too late if
     * the program has used verbs before; then that program's choice holds. */
    if (status == FT_OK && lib.fork_init() != 0)
        FT_LOG(INFO, "net", -1, "verbs: processes that fork may disturb RDMA (ibv_fork_init)");
}

int verbs_load(const struct verbs_lib **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (status)
        return ft_fail(status, "%s", why);
    *out = &lib;
    return FT_OK;
}
