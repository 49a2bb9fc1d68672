/*
 * What each error of a device means.
 *
 * The failure of a way is recoverable if a new queue pair between the same ports can do what it
 * could not: then the link engine opens one, and meanwhile other ways bring what is missing. An
 * error that says that one side broke the rules (lengths, keys, access) would come again.
 */
#include "transport/verbs/verbs.h"

/* X(code, what is lost, recoverable, reason) */
#define COMPLETIONS(X)                                                                     \
    X(SUCCESS, NOTHING, 1, "nothing is wrong")                                             \
    X(LOC_LEN_ERR, PROCESS, 0, "this side gave a length that the device refuses")          \
    X(LOC_QP_OP_ERR, PROCESS, 0, "this side gave a request that the queue pair cannot do") \
    X(LOC_EEC_OP_ERR, PROCESS, 0, "this side's end-to-end context is wrong")               \
    X(LOC_PROT_ERR, PROCESS, 0, "this side's memory is not registered for the request")    \
    X(WR_FLUSH_ERR, OPERATION, 1, "the queue pair had failed or was stopped before")       \
    X(MW_BIND_ERR, PROCESS, 0, "this side's memory window cannot be bound")                \
    X(BAD_RESP_ERR, LINK, 1, "the other side's answer makes no sense")                     \
    X(LOC_ACCESS_ERR, PROCESS, 0, "this side's memory may not be written")                 \
    X(REM_INV_REQ_ERR, PEER, 1, "the other side refuses the request as invalid")           \
    X(REM_ACCESS_ERR, PEER, 1,                                                             \
      "the other side's memory may not be written there, or not any more")                 \
    X(REM_OP_ERR, PEER, 1, "the other side's device could not do the request")             \
    X(RETRY_EXC_ERR, LINK, 1, "the other side, or the path to it, does not answer")        \
    X(RNR_RETRY_EXC_ERR, LINK, 1, "the other side takes no messages from its queue")       \
    X(LOC_RDD_VIOL_ERR, PROCESS, 0, "this side's reliable datagram domain is wrong")       \
    X(REM_INV_RD_REQ_ERR, PEER, 0, "the other side refuses reliable datagrams")            \
    X(REM_ABORT_ERR, PEER, 1, "the other side gave the request up")                        \
    X(INV_EECN_ERR, PROCESS, 0, "this side's end-to-end context has a wrong number")       \
    X(INV_EEC_STATE_ERR, PROCESS, 0, "this side's end-to-end context is in a wrong state") \
    X(FATAL_ERR, PROCESS, 0, "this side's device has failed")                              \
    X(RESP_TIMEOUT_ERR, LINK, 1, "the other side's answer did not come in time")           \
    X(GENERAL_ERR, LINK, 1, "this side's device reports an error without a reason")        \
    X(TM_ERR, PROCESS, 0, "this side's tag matching has failed")                           \
    X(TM_RNDV_INCOMPLETE, PROCESS, 0, "this side's tag matching met a rendezvous")

/* X(code, what is lost, recoverable, of what, reason) */
#define EVENTS(X)                                                                               \
    X(CQ_ERR, PROCESS, 1, QUEUE, "the completion queue overflowed or failed")                   \
    X(QP_FATAL, LINK, 1, WAY, "the device stopped the queue pair")                              \
    X(QP_REQ_ERR, PEER, 1, WAY, "the other side sent a request that makes no sense")            \
    X(QP_ACCESS_ERR, PEER, 1, WAY, "the other side asked for memory that it may not reach")     \
    X(COMM_EST, NOTHING, 1, WAY, "the first packet has come")                                   \
    X(SQ_DRAINED, NOTHING, 1, WAY, "all requests have ended")                                   \
    X(PATH_MIG, NOTHING, 1, WAY, "the path was changed")                                        \
    X(PATH_MIG_ERR, NOTHING, 1, WAY, "the path could not be changed")                           \
    X(DEVICE_FATAL, PROCESS, 0, DEVICE, "the device has failed")                                \
    X(PORT_ACTIVE, NOTHING, 1, PORT, "the port is active")                                      \
    X(PORT_ERR, LINK, 1, PORT, "the port has lost its link")                                    \
    X(LID_CHANGE, NOTHING, 1, PORT, "the port's local identifier has changed")                  \
    X(PKEY_CHANGE, NOTHING, 1, PORT, "the port's partition keys have changed")                  \
    X(SM_CHANGE, NOTHING, 1, PORT, "the subnet manager has changed")                            \
    X(SRQ_ERR, NOTHING, 1, QUEUE, "a shared receive queue has failed; none is used")            \
    X(SRQ_LIMIT_REACHED, NOTHING, 1, QUEUE, "a shared receive queue runs low; none is used")    \
    X(QP_LAST_WQE_REACHED, NOTHING, 1, WAY, "the queue pair takes no more from its queue")      \
    X(CLIENT_REREGISTER, NOTHING, 1, PORT, "the subnet manager asks clients to register again") \
    X(GID_CHANGE, NOTHING, 1, PORT, "the port's addresses have changed")                        \
    X(WQ_FATAL, NOTHING, 1, QUEUE, "a work queue has failed; none is used")

static const struct verbs_error completion[] = {
#define X(code, lost, again, reason) \
    [IBV_WC_##code] = {#code, VERBS_LOST_##lost, again, VERBS_OF_WAY, reason},
    COMPLETIONS(X)
#undef X
};

static const struct verbs_error event[] = {
#define X(code, lost, again, of, reason) \
    [IBV_EVENT_##code] = {#code, VERBS_LOST_##lost, again, VERBS_OF_##of, reason},
    EVENTS(X)
#undef X
};

const struct verbs_error *verbs_completion_error(unsigned status)
{
    static const struct verbs_error unknown = {"UNKNOWN", VERBS_LOST_LINK, true, VERBS_OF_WAY,
                                               "the device reports an error that is not known "
                                               "here"};
    return status < FT_ARRAY_LEN(completion) ? &completion[status] : &unknown;
}

const struct verbs_error *verbs_event_error(unsigned type)
{
    static const struct verbs_error unknown = {"UNKNOWN", VERBS_LOST_NOTHING, true, VERBS_OF_DEVICE,
                                               "the device reports an event that is not known "
                                               "here"};
    return type < FT_ARRAY_LEN(event) ? &event[type] : &unknown;
}

const char *verbs_lost_name(enum verbs_lost lost)
{
    static const char *const names[] = {"nothing", "operation", "link", "peer", "process"};
    return names[lost];
}

/* A way that failed is a link that failed, whoever is to blame: that the peer is gone only its side
 * connection can tell. */
int verbs_error_status(const struct verbs_error *error)
{
    switch (error->lost) {
    case VERBS_LOST_NOTHING:
        return FT_OK;
    case VERBS_LOST_PEER:
        return error->recoverable ? FT_LINK : FT_PROTOCOL;
    case VERBS_LOST_PROCESS:
        return error->recoverable ? FT_LINK : FT_SYSTEM;
    default:
        return FT_LINK;
    }
}
