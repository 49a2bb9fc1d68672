/*
 * etcd: the few calls of etcd's HTTP gateway (API v3) that ftccld needs to choose one leader among
 * several and to keep what the leader knows. Blocking, bounded, for one thread. A key of a prefix,
 * `leader`, belongs to whoever wrote it first, until the lease of that process has run out.
 *
 * https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/
 */
#ifndef FT_ETCD_H
#define FT_ETCD_H

#include "base/base.h"

#define ETCD_VALUE_BYTES 256             /* of the leader's own words, with the 0 at the end */
#define ETCD_TEXT_MOST ((size_t)1 << 20) /* bytes of a text that is kept */

struct etcd;
/* url: etcd://HOST:PORT[,HOST:PORT...][/PREFIX], the members of one etcd cluster. A call that one
 * does not answer within its part of timeout_ms asks the next. FT_INVAL with a sentence, FT_NOMEM.
 */
int etcd_open(const char *url, int timeout_ms, struct etcd **out);
void etcd_close(struct etcd *);
/* The call under way, and all later ones, end within about a second. Any thread may call it. */
void etcd_stop(struct etcd *);

/* Each returns FT_OK, FT_PEER (etcd cannot be reached, or refuses), FT_PROTOCOL or FT_NOMEM, with a
 * sentence. */
int etcd_grant(struct etcd *, int64_t ttl_s, int64_t *lease);
/* *ttl_s: how long the lease lives from now on; 0: it has run out. */
int etcd_keep(struct etcd *, int64_t lease, int64_t *ttl_s);
int etcd_revoke(struct etcd *, int64_t lease);
/* Becomes the leader, if there is none; `value` says how others reach it. *revision: of the
 * leader's key, which names this leadership; 0: another one leads, who says `holder`. */
int etcd_claim(struct etcd *, int64_t lease, const char *value, int64_t *revision,
               char holder[ETCD_VALUE_BYTES]);
/* Keeps a text under a name, if this leadership still holds; *held says so. */
int etcd_save(struct etcd *, int64_t revision, const char *name, const char *text, bool *held);
/* The text under a name, which the caller frees; NULL: there is none. */
int etcd_load(struct etcd *, const char *name, char **text);

#endif
