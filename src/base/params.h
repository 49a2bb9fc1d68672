/*
 * The table of parameters. No other place names one. `ftccl-info -p` and the manual page are
 * generated from it.
 * X(id, environment name, kind, default, lowest, highest, unit, NCCL's name or "", help)
 * The range does not apply to strings.
 */
#ifndef FT_PARAMS_H
#define FT_PARAMS_H

#define FT_PARAMS(X)                                                                               \
    X(OP_TIMEOUT_MS, "FTCCL_OP_TIMEOUT_MS", INT, 60000, 0, 86400000, "ms", "",                     \
      "deadline of one operation from the moment its stream reaches it; 0 means none; "            \
      "libnccl.so.2: 1800000")                                                                     \
    X(INIT_TIMEOUT_MS, "FTCCL_INIT_TIMEOUT_MS", INT, 60000, 1, 86400000, "ms", "",                 \
      "time limit of init, split, finalize and destroy")                                           \
    X(PRESERVE_INPUT, "FTCCL_PRESERVE_INPUT", INT, 0, 0, 1, "", "",                                \
      "1: if an operation fails, a buffer that is both input and output gets its input back; "     \
      "costs a copy")                                                                              \
    X(SUSPECT_MS, "FTCCL_SUSPECT_MS", INT, 2000, 50, 3600000, "ms", "",                            \
      "silence after which a rank or its host is suspected, TCP gives up a link, and an "          \
      "agreement goes on without it")                                                              \
    X(HEARTBEAT_MS, "FTCCL_HEARTBEAT_MS", INT, 250, 0, 60000, "ms", "",                            \
      "interval between heartbeats, which a rank sends to log2(n) others; 0: never")               \
    X(SILENCE_MS, "FTCCL_SILENCE_MS", INT, 0, 0, 3600000, "ms", "",                                \
      "silence of a rank's heartbeats after which operations under way fail; 0: never")            \
    X(FAILURE_POLICY, "FTCCL_FAILURE_POLICY", STR, "report", 0, 0, "", "",                         \
      "retry: AllReduce, Reduce and Broadcast go on with the live ranks inside the call; the "     \
      "same on all ranks")                                                                         \
    X(MIN_RANKS, "FTCCL_MIN_RANKS", INT, 1, 1, 1048576, "", "",                                    \
      "with fewer live ranks than this, a shrink fails for good")                                  \
    X(CHUNK_BYTES, "FTCCL_CHUNK_BYTES", INT, 131072, 4096, 8388608, "bytes", "NCCL_BUFFSIZE",      \
      "S of the FTAR paper: longest message of a collective, but for some inside a host, which "   \
      "are up to FTCCL_CHUNKS times as long; the same on all ranks")                               \
    X(CHUNKS, "FTCCL_CHUNKS", INT, 4, 1, 8, "", "",                                                \
      "C of the FTAR paper: chunks in flight per peer and collective, one per lane; the same on "  \
      "all ranks")                                                                                 \
    X(ALGO, "FTCCL_ALGO", STR, "", 0, 0, "", "NCCL_ALGO",                                          \
      "algorithm for all collectives (ring) or per kind (allreduce:tree,allgather:ring); ^x "      \
      "excludes x")                                                                                \
    X(LEND, "FTCCL_LEND", INT, 1, 0, 1, "", "",                                                    \
      "1: ranks of a host read large messages from each other's ftcclMemAlloc memory; 0 for "      \
      "programs that call mlockall()")                                                             \
    X(CMA, "FTCCL_CMA", INT, 16384, 0, 8388608, "bytes", "",                                       \
      "shortest message within a host that, if it is only moved, is read from the sender's "       \
      "memory (process_vm_readv); 0: never")                                                       \
    X(CMA_SLOW, "FTCCL_CMA_SLOW", INT, -1, -1, 1, "", "",                                          \
      "1: such reads are slow on this machine, and are used only where they still gain; 0: they "  \
      "are not slow; -1: measured at the first communicator")                                      \
    X(TRIM_MS, "FTCCL_TRIM_MS", INT, 1000, 0, 3600000, "ms", "",                                   \
      "memory that long messages used is freed when none has needed it for this time, or up to "   \
      "twice that; 0: never")                                                                      \
    X(TRANSPORTS, "FTCCL_TRANSPORTS", STR, "", 0, 0, "", "",                                       \
      "ordered list of transports that may be used, e.g. shm,tcp; empty: all found")               \
    X(RAIL_RETRY_MS, "FTCCL_RAIL_RETRY_MS", INT, 1000, 0, 3600000, "ms", "",                       \
      "a lost queue pair or endpoint of a link is opened again after this time; 0: never")         \
    X(OFI_PROVIDER, "FTCCL_OFI_PROVIDER", STR, "", 0, 0, "", "",                                   \
      "libfabric provider of the transport ofi, e.g. efa or tcp; empty: the best one found")       \
    X(NET_PLUGIN, "FTCCL_NET_PLUGIN", STR, "", 0, 0, "", "NCCL_NET_PLUGIN",                        \
      "network plugins of NCCL to try, by name (libnccl-net-NAME.so) or file; turns transport "    \
      "net on; none: no plugin")                                                                   \
    X(DEVICE, "FTCCL_DEVICE", STR, "", 0, 0, "", "", "host or cuda; empty: the best one found")    \
    X(ON_FAILURE, "FTCCL_ON_FAILURE", STR, "release", 0, 0, "", "",                                \
      "streams of a GPU when an operation on them fails: release, or hold until abort, revoke or " \
      "shrink; libnccl.so.2: hold")                                                                \
    X(CUDA_BLOCKS, "FTCCL_CUDA_BLOCKS", INT, 2, 1, 64, "", "",                                     \
      "blocks of the kernel that copies and reduces while operations on GPU buffers run; each "    \
      "uses a multiprocessor")                                                                     \
    X(CUDA_IPC, "FTCCL_CUDA_IPC", INT, 1, 0, 1, "", "",                                            \
      "1: messages between GPUs of a machine are kept in the memory of the sender's GPU if the "   \
      "receiver's GPU can access it; 0: in pinned memory")                                         \
    X(CUDA_LAUNCH_BLOCKING, "CUDA_LAUNCH_BLOCKING", INT, 0, 0, 1, "", "",                          \
      "CUDA's variable: with 1 a launch waits for its kernel, so a call on GPU buffers returns "   \
      "when it is complete on all ranks")                                                          \
    X(CUDA_PINNED_BYTES, "FTCCL_CUDA_PINNED_BYTES", INT, 16777216, 0, 1 << 30, "bytes", "",        \
      "pinned memory for the link buffers of a rank with a GPU, and as much of the GPU's memory "  \
      "(FTCCL_CUDA_IPC); messages that do not fit are copied once more")                           \
    X(P2P_DISABLE, "FTCCL_P2P_DISABLE", INT, 0, 0, 1, "", "NCCL_P2P_DISABLE",                      \
      "1: the same as FTCCL_CUDA_IPC=0")                                                           \
    X(CUDA_THREADS, "FTCCL_CUDA_THREADS", INT, 512, 32, 512, "", "",                               \
      "threads per block of that kernel, a multiple of 32")                                        \
    X(HOSTID, "FTCCL_HOSTID", STR, "", 0, 0, "", "NCCL_HOSTID",                                    \
      "identity of this machine; ranks with different values do not use shared memory with each "  \
      "other")                                                                                     \
    X(SOCKET_IFNAME, "FTCCL_SOCKET_IFNAME", STR, "", 0, 0, "", "NCCL_SOCKET_IFNAME",               \
      "interfaces by prefix (eth,ib), =exact, ^excluded; empty: any that is up, loopback last")    \
    X(SOCKET_FAMILY, "FTCCL_SOCKET_FAMILY", STR, "", 0, 0, "", "NCCL_SOCKET_FAMILY",               \
      "AF_INET or AF_INET6; empty: both")                                                          \
    X(SOCKET_SOURCE, "FTCCL_SOCKET_SOURCE", STR, "", 0, 0, "", "",                                 \
      "source address that outgoing TCP connections bind to")                                      \
    X(TCP_CONNECTIONS, "FTCCL_TCP_CONNECTIONS", INT, 2, 1, 16, "", "NCCL_NSOCKS_PERTHREAD",        \
      "TCP connections per peer and direction; large messages are spread over them")               \
    X(PATHS_MASTER, "FTCCL_PATHS_MASTER", STR, "", 0, 0, "", "",                                   \
      "HOST:PORT of an ftccld that chooses the paths of all jobs; with FTCCL_PATHS and "           \
      "FTCCL_PATHS_KEY_FILE; empty: each job chooses alone")                                       \
    X(PATHS_KEY_FILE, "FTCCL_PATHS_KEY_FILE", STR, "", 0, 0, "", "",                               \
      "file with the key of that ftccld (its --key-file)")                                         \
    X(PATHS, "FTCCL_PATHS", INT, 0, 0, 16, "", "",                                                 \
      "TCP connections per peer and direction between hosts, each on a way of its own through "    \
      "the network, by its source port, and in turn over the interfaces that "                     \
      "FTCCL_SOCKET_IFNAME names; messages take the one that is done first; 0: "                   \
      "FTCCL_TCP_CONNECTIONS, wherever the network sends them")                                    \
    X(RECONNECT_MS, "FTCCL_RECONNECT_MS", INT, 2000, 0, 60000, "ms", "",                           \
      "how long a TCP connection that was reset may take to be made again before its link counts " \
      "as broken; 0: it counts at once")                                                           \
    X(IB_DISABLE, "FTCCL_IB_DISABLE", INT, 0, 0, 1, "", "NCCL_IB_DISABLE",                         \
      "1: RDMA devices (transport verbs) are not used")                                            \
    X(IB_HCA, "FTCCL_IB_HCA", STR, "", 0, 0, "", "NCCL_IB_HCA",                                    \
      "RDMA ports by prefix (mlx5), =exact, ^excluded, each with :port or without; a list gives "  \
      "the order; empty: all that are active")                                                     \
    X(IB_GID_INDEX, "FTCCL_IB_GID_INDEX", INT, -1, -1, 255, "", "NCCL_IB_GID_INDEX",               \
      "entry of the GID table to use; -1: RoCE v2 of the address family, not link-local")          \
    X(IB_ADDR_FAMILY, "FTCCL_IB_ADDR_FAMILY", STR, "AF_INET", 0, 0, "", "NCCL_IB_ADDR_FAMILY",     \
      "AF_INET or AF_INET6: which addresses of a RoCE port")                                       \
    X(IB_ADDR_RANGE, "FTCCL_IB_ADDR_RANGE", STR, "", 0, 0, "", "NCCL_IB_ADDR_RANGE",               \
      "range of addresses that a GID must be in, e.g. 10.0.0.0/8; empty: any")                     \
    X(IB_ROCE_VERSION_NUM, "FTCCL_IB_ROCE_VERSION_NUM", INT, 2, 1, 2, "",                          \
      "NCCL_IB_ROCE_VERSION_NUM", "version of RoCE")                                               \
    X(IB_TC, "FTCCL_IB_TC", INT, 0, 0, 255, "", "NCCL_IB_TC", "traffic class of RDMA packets")     \
    X(IB_SL, "FTCCL_IB_SL", INT, 0, 0, 15, "", "NCCL_IB_SL", "service level of RDMA packets")      \
    X(IB_TIMEOUT, "FTCCL_IB_TIMEOUT", INT, 16, 1, 31, "", "NCCL_IB_TIMEOUT",                       \
      "a device sends again after 4.096 us x 2^this without an answer")                            \
    X(IB_RETRY_CNT, "FTCCL_IB_RETRY_CNT", INT, 6, 0, 7, "", "NCCL_IB_RETRY_CNT",                   \
      "how often it does so before a queue pair has failed; with soft-RoCE 7 means for ever")      \
    X(IB_PKEY, "FTCCL_IB_PKEY", INT, 0, 0, 65535, "", "NCCL_IB_PKEY",                              \
      "index of the partition key")                                                                \
    X(IB_MTU, "FTCCL_IB_MTU", INT, 0, 0, 4096, "bytes", "",                                        \
      "longest RDMA packet: 256, 512, ..., 4096; 0: what the ports of both sides allow")           \
    X(IB_QPS_PER_CONNECTION, "FTCCL_IB_QPS_PER_CONNECTION", INT, 2, 1, 16, "",                     \
      "NCCL_IB_QPS_PER_CONNECTION", "queue pairs of a link for each port; at most 16 in all")      \
    X(IB_SOURCE_PORTS, "FTCCL_IB_SOURCE_PORTS", STR, "", 0, 0, "", "",                             \
      "UDP source ports, from 49152 on, of a link's queue pairs in turn, which choose their "      \
      "paths; empty: each another one")                                                            \
    X(DEBUG, "FTCCL_DEBUG", STR, "", 0, 0, "", "NCCL_DEBUG",                                       \
      "NONE, VERSION, WARN, INFO or TRACE; empty: WARN; libnccl.so.2: NONE")                       \
    X(DEBUG_FILE, "FTCCL_DEBUG_FILE", STR, "", 0, 0, "", "NCCL_DEBUG_FILE",                        \
      "where the log goes; %h is the host's name, %p the process; empty: stderr")                  \
    X(DEBUG_SUBSYS, "FTCCL_DEBUG_SUBSYS", STR, "", 0, 0, "", "NCCL_DEBUG_SUBSYS",                  \
      "subsystems of INFO and TRACE: INIT, COLL, NET, SHM, ..., ALL; ^A,B excludes; empty: all "   \
      "but COLL")                                                                                  \
    X(NCCL_VERSION, "FTCCL_NCCL_VERSION", STR, "", 0, 0, "", "",                                   \
      "the version that libnccl.so.2 reports, such as 2.28.9; empty: the version that it "         \
      "implements")                                                                                \
    X(COMM_BLOCKING, "FTCCL_COMM_BLOCKING", INT, -1, -1, 1, "", "NCCL_COMM_BLOCKING",              \
      "1 or 0 overrides config.blocking")                                                          \
    X(COMM_ID, "FTCCL_COMM_ID", STR, "", 0, 0, "", "NCCL_COMM_ID",                                 \
      "host:port of the rendezvous instead of the address in the unique id; needs FTCCL_SECRET "   \
      "or a key file")                                                                             \
    X(SECRET, "FTCCL_SECRET", STR, "", 0, 0, "", "",                                               \
      "the job's secret, at least 16 characters, used with COMM_ID")                               \
    X(SECRET_FILE, "FTCCL_SECRET_FILE", STR, "", 0, 0, "", "",                                     \
      "file that holds the job's secret (mode 0600)")                                              \
    X(COORDINATOR, "FTCCL_COORDINATOR", STR, "", 0, 0, "", "",                                     \
      "HOST:PORT[,HOST:PORT...] of the coordinators of managed membership")                        \
    X(MIN_MEMBERS, "FTCCL_MIN_MEMBERS", INT, 1, 1, 1048576, "", "",                                \
      "fewer replicas make no view; the largest value in the group counts")                        \
    X(JOIN_WINDOW_MS, "FTCCL_JOIN_WINDOW_MS", INT, 1000, 0, 3600000, "ms", "",                     \
      "how long a view waits for live replicas that do not ask for it; likewise")                  \
    X(RAS_ENABLE, "FTCCL_RAS_ENABLE", INT, 1, 0, 1, "", "NCCL_RAS_ENABLE",                         \
      "1: a rank of each host answers questions about its ranks, such as those of ncclras; needs " \
      "FTCCL_TELEMETRY")                                                                           \
    X(RAS_ADDR, "FTCCL_RAS_ADDR", STR, "localhost:28028", 0, 0, "", "NCCL_RAS_ADDR",               \
      "host:port where it answers; anyone who reaches it may ask")                                 \
    X(TELEMETRY, "FTCCL_TELEMETRY", INT, 1, 0, 1, "", "", "0: no telemetry file in /dev/shm")      \
    X(DUMP_DIR, "FTCCL_DUMP_DIR", STR, "", 0, 0, "", "",                                           \
      "directory that gets a snapshot of this host's ranks when an operation is late, for "        \
      "ftccl-diagnose --replay")                                                                   \
    X(VERIFY, "FTCCL_VERIFY", INT, 0, 0, 1, "", "",                                                \
      "1: every message carries a CRC32C, and ranks compare results that are the same on all; "    \
      "the same on all ranks")                                                                     \
    X(SPIN_US, "FTCCL_SPIN_US", INT, -1, -1, 1000000, "us", "",                                    \
      "how long a waiting call, or the engine's thread while a GPU has work, spins before it "     \
      "sleeps; -1: 1000 with a core for each local rank, else 0")                                  \
    X(TUNE_FILE, "FTCCL_TUNE_FILE", STR, "", 0, 0, "", "",                                         \
      "file with measured choices and costs for the selection; the same on all ranks")             \
    X(CONF_FILE, "FTCCL_CONF_FILE", STR, "", 0, 0, "", "NCCL_CONF_FILE",                           \
      "file of NAME=value lines; empty: /etc/nccl.conf")                                           \
    X(FAULT, "FTCCL_FAULT", STR, "", 0, 0, "", "",                                                 \
      "for tests: what the fault transport does, e.g. "                                            \
      "seed=7,delay_us=100,drop_ppm=10,cut_after=1000,flip_after=50")

enum ft_param_id {
#define X(id, env, kind, def, lo, hi, unit, alias, help) FT_PARAM_##id,
    FT_PARAMS(X)
#undef X
        FT_PARAM_COUNT
};

#endif
