/*
 * Validation in place, private to this floor: the parts that validation.c (all ranks pause before
 * the same collective) and measure.c (what they do then) share.
 */
#ifndef FT_GROUP_VALIDATION_H
#define FT_GROUP_VALIDATION_H

#include "core/group/group.h"

enum ft_pause_phase {
    FT_PAUSE_COUNTING, /* holds; the ranks tell how many collectives have started */
    FT_PAUSE_STOPPING, /* goes on to the greatest of these numbers, and holds the next call */
    FT_PAUSE_MEASURING
};

/* What this rank knows of one of its transfers. */
struct ft_transfer_state {
    uint32_t asked;       /* sender: the round that the receiver wants; 0: none yet */
    uint32_t round, done; /* the round under way, and its messages that were sent or have come */
    uint64_t first_ns, first_bytes; /* receiver: its first message */
    uint64_t bytes;                 /* of the round, so far */
    uint64_t begun_ns;
    bool over;
};

struct ft_pause {
    struct ft_ask ask;
    uint32_t passes;                         /* an OR of enum ft_passes */
    int leader, parent, child[2], nchildren; /* ranks; parent -1: this rank leads */
    enum ft_pause_phase phase;
    uint32_t round;           /* of counting: 0; of stopping: from 1 */
    uint64_t most;            /* the greatest count of this rank and those below it */
    uint64_t stop;            /* it stops after so many collectives */
    int answers;              /* children that have answered in this round */
    bool answered;            /* this rank has passed that on */
    uint64_t asked_ns;        /* when it began here */
    uint64_t ctx;             /* of the transfers */
    struct ft_validation all; /* what telemetry tells */

    unsigned char *memory; /* FT_CHECK_BYTES; NULL: not measuring */
    struct ft_transfer transfers[FT_TRANSFERS];
    struct ft_transfer_state states[FT_TRANSFERS];
    int ntransfers, nslots, at;  /* `at`: the transfer under way */
    uint64_t checks_ns, slot_ns; /* the most that the checks and each slot take */
};

enum ft_pause_what {
    FT_PAUSE_HOLD = 1, /* down the tree: what the request says */
    FT_PAUSE_UP,       /* value: the greatest count, in this round */
    FT_PAUSE_GO,       /* down: stop after `value` */
    FT_PAUSE_START,    /* down: all have stopped */
    FT_PAUSE_CANCEL,   /* both ways: nothing comes of it; `value` is an enum ft_validation_why */
    FT_PAUSE_SEND,     /* between the ends of a transfer: send round `round` of slot `value` */
    FT_PAUSE_MEASURED  /* what the receiver has measured in slot `value` */
};
struct ft_pause_message {
    uint32_t what, round;
    uint64_t number, value;
    uint64_t bytes, ns;
    uint32_t pause_ms, passes;
    int32_t leader;
    uint32_t state;
};

void ft_pause_send(struct ft_comm *comm, int rank, const struct ft_pause_message *message);
/* The validation is over for this rank. */
void ft_pause_end(struct ft_comm *comm, enum ft_validation_state state, enum ft_validation_why why);

/* measure.c. plan: before any message can come. start: FT_NOMEM. turn: *over: this rank has nothing
 * left to do. */
void ft_measure_plan(struct ft_comm *comm);
int ft_measure_start(struct ft_comm *comm);
bool ft_measure_turn(struct ft_comm *comm, bool *over);
void ft_measure_receive(struct ft_comm *comm, int from, const struct ft_pause_message *message);

#endif
