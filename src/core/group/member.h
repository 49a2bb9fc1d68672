/*
 * A member of managed membership: an engine that lives as long as the member, and the two
 * communicators of its view. Part of group.h.
 */
#ifndef FT_MEMBER_H
#define FT_MEMBER_H

struct ft_member;
struct ft_member_config {
    struct ft_net_address address[FT_COORDINATORS_MOST]; /* of coordinators */
    int naddresses;
    unsigned char secret[FT_SECRET_BYTES];
    struct ft_role role;
    uint32_t min_members, window_ms; /* see struct ft_client_config */
    const char *name;                /* of the communicators */
    struct ft_settings settings;
};
/* Blocks until a coordinator has accepted the member, up to the init bound. */
int ft_member_open(const struct ft_member_config *config, struct ft_member **out);
/* Waits for the next view, up to the init bound. *view and *comm, the communicator across replicas,
 * belong to the member until the next call that succeeds. If *comm is another one than before, the
 * caller ends the one from before, whose links the new one has kept. On failure nothing has
 * changed. */
int ft_member_view(struct ft_member *member, uint64_t step, const struct ft_managed_view **view,
                   struct ft_comm **comm);
/* Agrees with the ranks of the replica: *commit is the same on all that live. */
int ft_member_commit(struct ft_member *member, uint64_t step, bool ok, bool *commit);
void ft_member_role(struct ft_member *member, struct ft_role *out);
/* The communicator across replicas is about to be ended by the caller: the member leaves it alone
 * from now on. Only close is legal afterwards. */
void ft_member_release(struct ft_member *member);
void ft_member_close(struct ft_member *member); /* says goodbye to the coordinator; frees */

#endif
