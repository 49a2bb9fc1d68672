/*
 * Without libcurl and jansson there is no store: this ftccld serves all members that come.
 */
#include "members.h"

bool members_lead_open(struct members *m)
{
    const struct daemon_options *o = daemon_options_of(m->daemon);
    if (!o->store[0])
        return true;
    fprintf(stderr, "%s: --store: this program was built without libcurl or jansson\n", o->program);
    return false;
}

void members_lead_close(struct members *m)
{
    (void)m;
}

void members_lead_tick(struct members *m)
{
    (void)m;
}

void members_look(struct members *m)
{
    (void)m;
}

bool members_serves(struct members *m, struct daemon_peer *peer,
                    const struct daemon_message *message)
{
    (void)m, (void)peer, (void)message;
    return true;
}

void members_lead_tell(const struct members *m, char *text, size_t room)
{
    (void)m;
    snprintf(text, room, "%s", "");
}
