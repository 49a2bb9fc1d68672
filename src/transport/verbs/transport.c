/*
 * The transport verbs: links of rma over queue pairs.
 */
#include "transport/rma/rma.h"
#include "transport/verbs/verbs.h"

static int open_transport(const struct ft_transport_config *config, struct ft_transport **out)
{
    return ft_rma_open(&ft_transport_verbs, &verbs_fabric_ops, config, out);
}

const struct ft_transport_ops ft_transport_verbs = {
    .name = "verbs",
    .nccl_name = "IB",
    .caps = {.scope = FT_SCOPE_NETWORK, .rdma = true, .registers = true},
    .open = open_transport,
    .describe = verbs_describe,
    FT_RMA_TRANSPORT_OPS,
};
