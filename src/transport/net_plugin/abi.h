/*
 * The binary interface of NCCL's network plugins: what a plugin exports as ncclNetPlugin_v8, _v11
 * or _v12. Order and types of the fields are the interface; names and words are ours. Versions 11
 * and 12 differ only in how many devices one virtual device may have, and in the rail and plane at
 * the end of the properties. All calls return 0 or an error of NCCL; none may block for a peer.
 */
#ifndef FT_NET_PLUGIN_ABI_H
#define FT_NET_PLUGIN_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NET_ABI_HANDLE_BYTES 128 /* of listen */
#define NET_ABI_REQUESTS 32      /* most requests of one comm that are under way */
#define NET_ABI_PTR_HOST 1
#define NET_ABI_DEVICES_V11 4
#define NET_ABI_DEVICES_V12 8
#define NET_ABI_UNDEFINED (-1) /* a traffic class, a rail, a plane */

enum net_abi_level {
    NET_ABI_LOG_NONE,
    NET_ABI_LOG_VERSION,
    NET_ABI_LOG_WARN,
    NET_ABI_LOG_INFO,
    NET_ABI_LOG_ABORT,
    NET_ABI_LOG_TRACE,
};

typedef void net_abi_logger(int level, unsigned long subsystems, const char *file, int line,
                            const char *format, ...);
typedef int net_abi_profiler(void **event, int type, void *parent, int64_t plugin, void *data);

struct net_abi_properties_v8 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_recvs;
    int device_type, device_version;
};

/* The part that v11 and v12 have in common. */
#define NET_ABI_PROPERTIES           \
    char *name, *pci_path;           \
    uint64_t guid;                   \
    int ptr_support;                 \
    int reg_is_global;               \
    int force_flush;                 \
    int speed_mbps;                  \
    int port;                        \
    float latency_us;                \
    int max_comms;                   \
    int max_recvs;                   \
    int device_type, device_version; \
    int ndevices;

struct net_abi_properties_v11 {
    NET_ABI_PROPERTIES
    int devices[NET_ABI_DEVICES_V11];
    size_t max_p2p_bytes, max_coll_bytes;
    int max_multi_request;
};

struct net_abi_properties_v12 {
    NET_ABI_PROPERTIES
    int devices[NET_ABI_DEVICES_V12];
    size_t max_p2p_bytes, max_coll_bytes;
    int max_multi_request;
    int16_t rail, plane;
};

struct net_abi_config { /* of v11 and v12 */
    int traffic_class;
};

struct net_abi_v8 {
    const char *name;
    int (*init)(net_abi_logger *);
    int (*devices)(int *count);
    int (*properties)(int device, struct net_abi_properties_v8 *);
    int (*listen)(int device, void *handle, void **listener);
    int (*connect)(int device, void *handle, void **send_comm, void **offload);
    int (*accept)(void *listener, void **recv_comm, void **offload);
    int (*reg)(void *comm, void *data, size_t len_bytes, int type, void **registered);
    int (*reg_dmabuf)(void *comm, void *data, size_t len_bytes, int type, uint64_t offset, int fd,
                      void **registered);
    int (*dereg)(void *comm, void *registered);
    int (*isend)(void *send_comm, void *data, int len_bytes, int tag, void *registered,
                 void **request);
    int (*irecv)(void *recv_comm, int n, void **data, int *lens_bytes, int *tags, void **registered,
                 void **request);
    int (*flush)(void *recv_comm, int n, void **data, int *lens_bytes, void **registered,
                 void **request);
    int (*test)(void *request, int *done, int *lens_bytes);
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listener);
    int (*device_registration)(void *comm, void *registered, void **out);
    int (*consumed)(void *recv_comm, int n, void *request);
};

/* v11 and v12; only the properties differ. */
struct net_abi_v11 {
    const char *name;
    int (*init)(void **context, uint64_t comm, struct net_abi_config *, net_abi_logger *,
                net_abi_profiler *);
    int (*devices)(int *count);
    int (*properties)(int device, void *properties);
    int (*listen)(void *context, int device, void *handle, void **listener);
    int (*connect)(void *context, int device, void *handle, void **send_comm, void **offload);
    int (*accept)(void *listener, void **recv_comm, void **offload);
    int (*reg)(void *comm, void *data, size_t len_bytes, int type, void **registered);
    int (*reg_dmabuf)(void *comm, void *data, size_t len_bytes, int type, uint64_t offset, int fd,
                      void **registered);
    int (*dereg)(void *comm, void *registered);
    int (*isend)(void *send_comm, void *data, size_t len_bytes, int tag, void *registered,
                 void *profiled, void **request);
    int (*irecv)(void *recv_comm, int n, void **data, size_t *lens_bytes, int *tags,
                 void **registered, void **profiled, void **request);
    int (*flush)(void *recv_comm, int n, void **data, int *lens_bytes, void **registered,
                 void **request);
    int (*test)(void *request, int *done, int *lens_bytes);
    int (*close_send)(void *send_comm);
    int (*close_recv)(void *recv_comm);
    int (*close_listen)(void *listener);
    int (*device_registration)(void *comm, void *registered, void **out);
    int (*consumed)(void *recv_comm, int n, void *request);
    int (*make_device)(int *device, void *virtual_device);
    int (*finalize)(void *context);
    int (*set_attributes)(void *context, void *attributes);
};

_Static_assert(sizeof(struct net_abi_v8) == 19 * sizeof(void *), "the v8 table");
_Static_assert(sizeof(struct net_abi_v11) == 22 * sizeof(void *), "the v11 and v12 tables");
_Static_assert(sizeof(struct net_abi_properties_v8) == 64, "properties of v8");
_Static_assert(offsetof(struct net_abi_properties_v11, max_p2p_bytes) == 88, "properties of v11");
_Static_assert(offsetof(struct net_abi_properties_v12, max_p2p_bytes) == 104, "properties of v12");
_Static_assert(offsetof(struct net_abi_properties_v12, rail) == 124, "properties of v12");

#endif
