/*
 * The settings of a communicator: parameters of the environment, then the user's ftcclConfig_t and
 * its options. Each field is checked before it is taken.
 */
#include "api/api.h"

#include <string.h>

static int check_range(const char *field, int value, int lowest, int highest)
{
    if (value == FTCCL_CONFIG_UNDEF_INT || (value >= lowest && value <= highest))
        return FT_OK;
    return ft_fail(FT_INVAL, "config.%s is %d, not from %d to %d", field, value, lowest, highest);
}

/* Fields of the configuration whose values have limits. */
static const struct {
    const char *name;
    size_t offset;
    int lowest, highest;
} limited_field[] = {
    {"blocking", offsetof(ftcclConfig_t, blocking), 0, 1},
    {"cgaClusterSize", offsetof(ftcclConfig_t, cgaClusterSize), 0, 8},
    {"minCTAs", offsetof(ftcclConfig_t, minCTAs), 1, 1024},
    {"maxCTAs", offsetof(ftcclConfig_t, maxCTAs), 1, 1024},
    {"splitShare", offsetof(ftcclConfig_t, splitShare), 0, 1},
    {"trafficClass", offsetof(ftcclConfig_t, trafficClass), 0, INT_MAX},
    {"collnetEnable", offsetof(ftcclConfig_t, collnetEnable), 0, 1},
    {"CTAPolicy", offsetof(ftcclConfig_t, CTAPolicy), 0, 3},
    {"shrinkShare", offsetof(ftcclConfig_t, shrinkShare), 0, 1},
    {"nvlsCTAs", offsetof(ftcclConfig_t, nvlsCTAs), 0, INT_MAX},
    {"nChannelsPerNetPeer", offsetof(ftcclConfig_t, nChannelsPerNetPeer), 0, INT_MAX},
    {"nvlinkCentricSched", offsetof(ftcclConfig_t, nvlinkCentricSched), 0, 1},
    {"graphUsageMode", offsetof(ftcclConfig_t, graphUsageMode), 0, 2},
    {"numRmaCtx", offsetof(ftcclConfig_t, numRmaCtx), 0, INT_MAX},
    {"maxP2pPeers", offsetof(ftcclConfig_t, maxP2pPeers), 0, INT_MAX},
    {"graphStreamOrdering", offsetof(ftcclConfig_t, graphStreamOrdering), 0, 1},
};

static int check_fields(const ftcclConfig_t *c)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(limited_field); i++) {
        int value, rc;
        memcpy(&value, (const char *)c + limited_field[i].offset, sizeof value);
        rc = check_range(limited_field[i].name, value, limited_field[i].lowest,
                         limited_field[i].highest);
        if (rc != FT_OK)
            return rc;
    }
    if (c->minCTAs != FTCCL_CONFIG_UNDEF_INT && c->maxCTAs != FTCCL_CONFIG_UNDEF_INT &&
        c->minCTAs > c->maxCTAs)
        return ft_fail(FT_INVAL, "config.minCTAs %d is above config.maxCTAs %d", c->minCTAs,
                       c->maxCTAs);
    return FT_OK;
}

static int check_bound(const char *name, int64_t value, int64_t lowest)
{
    if (value >= lowest && value <= 86400000)
        return FT_OK;
    return ft_fail(FT_INVAL, "options.%s is %lld, not from %lld to 86400000", name,
                   (long long)value, (long long)lowest);
}

/* Sets *to, if the user has set the option. */
static int take_bound(const char *name, int64_t value, int64_t lowest, int64_t *to)
{
    if (value == FTCCL_OPTION_UNDEF)
        return FT_OK;
    int rc = check_bound(name, value, lowest);
    if (rc == FT_OK)
        *to = value;
    return rc;
}

/* The same for an option whose values are 0 and 1; `names` is what the user calls them. */
static int take_choice(const char *name, int64_t value, const char *names, bool *to)
{
    if (value == FTCCL_OPTION_UNDEF)
        return FT_OK;
    if (value != 0 && value != 1)
        return ft_fail(FT_INVAL, "options.%s is %lld, not %s", name, (long long)value, names);
    *to = value == 1;
    return FT_OK;
}
_Static_assert(FTCCL_POLICY_REPORT == 0 && FTCCL_POLICY_RETRY == 1, "take_choice() needs it");
_Static_assert(FTCCL_STREAMS_RELEASE == 0 && FTCCL_STREAMS_HOLD == 1, "take_choice() needs it");

static int take_bounds(struct ft_comm_limits *limits, const ftcclOptions_t *o)
{
    int rc = take_bound("opTimeoutMs", o->opTimeoutMs, 0, &limits->op_timeout_ms);
    if (rc == FT_OK)
        rc = take_bound("initTimeoutMs", o->initTimeoutMs, 1, &limits->init_timeout_ms);
    if (rc == FT_OK)
        rc = take_bound("minRanks", o->minRanks, 1, &limits->min_ranks);
    if (rc == FT_OK)
        rc = take_bound("suspectMs", o->suspectMs, 50, &limits->suspect_ms);
    if (rc == FT_OK)
        rc = take_bound("heartbeatMs", o->heartbeatMs, 0, &limits->heartbeat_ms);
    if (rc == FT_OK)
        rc = take_bound("silenceMs", o->silenceMs, 0, &limits->silence_ms);
    return rc;
}

static int take_choices(struct ft_comm_limits *limits, const ftcclOptions_t *o)
{
    int rc = take_choice("preserveInput", o->preserveInput, "0 or 1", &limits->preserve_input);
    if (rc == FT_OK)
        rc = take_choice("verify", o->verify, "0 or 1", &limits->verify);
    if (rc == FT_OK)
        rc = take_choice("failurePolicy", o->failurePolicy,
                         "FTCCL_POLICY_REPORT or FTCCL_POLICY_RETRY", &limits->retry);
    if (rc == FT_OK)
        rc = take_choice("onFailure", o->onFailure, "FTCCL_STREAMS_RELEASE or FTCCL_STREAMS_HOLD",
                         &limits->hold);
    if (rc == FT_OK)
        rc = take_choice("concurrentP2p", o->concurrentP2p, "0 or 1", &limits->concurrent);
    return rc;
}

/* Applies the options. Accepts the older and shorter struct of an older caller. */
static int take_options(struct ftcclComm *to, const ftcclOptions_t *options)
{
    if (options->size < offsetof(ftcclOptions_t, transports))
        return ft_fail(FT_INVAL,
                       "config.options.size is %zu; it must be set by FTCCL_OPTIONS_INITIALIZER",
                       options->size);
    ftcclOptions_t o = FTCCL_OPTIONS_INITIALIZER;
    memcpy(&o, options, ft_min(options->size, sizeof o));
    to->rank_key = o.rankKey;
    int rc = take_bounds(&to->limits, &o);
    if (rc == FT_OK)
        rc = take_choices(&to->limits, &o);
    if (rc == FT_OK)
        rc = take_bound("minMembers", o.minMembers, 1, &to->min_members);
    if (rc == FT_OK)
        rc = take_bound("joinWindowMs", o.joinWindowMs, 0, &to->join_window_ms);
    if (rc == FT_OK && o.transports &&
        snprintf(to->transports, sizeof to->transports, "%s", o.transports) >=
            (int)sizeof to->transports)
        rc = ft_fail(FT_INVAL, "options.transports is longer than %zu characters",
                     sizeof to->transports - 1);
    return rc;
}

/* The name of a network of ours, or NCCL's for it. */
static int take_net_name(struct ftcclComm *to, const char *name)
{
    char list[sizeof to->transports];
    int rc = ft_transport_only_network(name, list, sizeof list);
    if (rc == FT_OK && !*to->transports)
        memcpy(to->transports, list, sizeof list);
    return rc;
}

int ft_config_take(struct ftcclComm *to, const ftcclConfig_t *config)
{
    if (!config)
        return FT_OK;
    if (config->magic != FTCCL_CONFIG_MAGIC ||
        config->size < offsetof(ftcclConfig_t, blocking) + sizeof(int))
        return ft_fail(FT_INVAL,
                       "the configuration was not initialised with FTCCL_CONFIG_INITIALIZER");
    ftcclConfig_t c = FTCCL_CONFIG_INITIALIZER;
    memcpy(&c, config, ft_min(config->size, sizeof c));
    int rc = check_fields(&c);
    if (rc == FT_OK && c.options)
        rc = take_options(to, c.options);
    if (rc == FT_OK && c.netName)
        rc = take_net_name(to, c.netName);
    if (rc != FT_OK)
        return rc;
    if (c.blocking != FTCCL_CONFIG_UNDEF_INT)
        to->blocking = c.blocking;
    if (c.commName)
        snprintf(to->name, sizeof to->name, "%s", c.commName);
    return FT_OK;
}

/* Reads a parameter that has two values. Any other value counts as `no`. */
static bool is_chosen(enum ft_param_id id, const char *name, const char *yes, const char *no)
{
    const char *value = ft_param_str(id);
    if (strcmp(value, yes) && strcmp(value, no))
        FT_LOG(WARN, "init", -1, "%s is %s, not %s or %s; %s is taken", name, value, no, yes, no);
    return !strcmp(value, yes);
}

void ft_config_defaults(struct ftcclComm *to)
{
    int64_t blocking = ft_param_int(FT_PARAM_COMM_BLOCKING);
    to->blocking = blocking != 0;
    to->limits = (struct ft_comm_limits){
        .op_timeout_ms = ft_param_int(FT_PARAM_OP_TIMEOUT_MS),
        .init_timeout_ms = ft_param_int(FT_PARAM_INIT_TIMEOUT_MS),
        .preserve_input = ft_param_int(FT_PARAM_PRESERVE_INPUT) != 0,
        .verify = ft_param_int(FT_PARAM_VERIFY) != 0,
        .retry = is_chosen(FT_PARAM_FAILURE_POLICY, "FTCCL_FAILURE_POLICY", "retry", "report"),
        .hold = is_chosen(FT_PARAM_ON_FAILURE, "FTCCL_ON_FAILURE", "hold", "release"),
        .suspect_ms = ft_param_int(FT_PARAM_SUSPECT_MS),
        .heartbeat_ms = ft_param_int(FT_PARAM_HEARTBEAT_MS),
        .silence_ms = ft_param_int(FT_PARAM_SILENCE_MS),
        .min_ranks = ft_param_int(FT_PARAM_MIN_RANKS)};
    to->min_members = ft_param_int(FT_PARAM_MIN_MEMBERS);
    to->join_window_ms = ft_param_int(FT_PARAM_JOIN_WINDOW_MS);
    to->rank_key = FTCCL_OPTION_UNDEF;
    to->name[0] = to->transports[0] = '\0';
}

void ft_config_override(struct ftcclComm *to)
{
    int64_t blocking = ft_param_int(FT_PARAM_COMM_BLOCKING);
    if (blocking >= 0)
        to->blocking = blocking != 0;
}
