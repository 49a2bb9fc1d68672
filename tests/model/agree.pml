/*
 * The agreement of src/membership/agree*.c without its clock: acceptors, and ballots that any rank
 * may start at any time (which is what false suspicion amounts to). A message, once sent, may
 * arrive at any time, never, or again, also after its sender's death; the proof of a death may come
 * to anyone at any time after it. What a fresh value contains does not matter: it is named after
 * its ballot. tests/model/replay.pml lets this model take the steps that the program took in the
 * simulation.
 *
 * N ranks (3 or 4), B ballots (2 or 3), each with its leader l. One of these makes it wrong, so
 * that it must fail:
 *   LIVING    a quorum is a majority of those not proven dead; a tie goes to the lowest of them
 *   NOACK     the proven dead need not be out of everyone's hearing
 *   NOPROMISE a rank accepts below the ballot that it promised
 *   FRESH     a leader proposes a value of its own even if one has been accepted
 */
#ifndef SET
#define SET byte /* of ranks */
#endif
#ifndef N
#define N 3
#endif
#ifndef B
#define B 3
#endif
#ifndef REPLAY
#if B == 2 /* who leads which ballot */
#define EACH_BALLOT(M) M(1, 0) M(2, LAST)
#define END_BALLOTS END(1, 0) END(2, LAST)
#else
#define EACH_BALLOT(M) M(1, 0) M(2, 1) M(3, LAST)
#define END_BALLOTS END(1, 0) END(2, 1) END(3, LAST)
#endif
#if N == 3
#define LAST 2
#define EACH_RANK(M, b, l) M(b, 0, l) M(b, 1, l) M(b, 2, l)
#else
#define LAST 3
#define EACH_RANK(M, b, l) M(b, 0, l) M(b, 1, l) M(b, 2, l) M(b, 3, l)
#endif
#endif
#define bit(r) (1 << (r))
#define has(set, r) (((set) >> (r)) & 1)
#define at(b, r) ((b) * N + (r))
#define ALL ((1 << N) - 1)

SET dead;             /* in truth */
SET gone[N];          /* whom a rank holds for dead and does not hear */
byte promised[N], accepted[N], value[N], decided[N];

/* to the leader of the ballot, in its present phase: 1 + the ballot of the value in a promise */
byte sent[(B + 1) * N];
byte sent_value[(B + 1) * N];
SET sent_gone[(B + 1) * N];
SET heard[B + 1];             /* the leader of a ballot: promises */
byte best[B + 1], best_value[B + 1];
byte proposal[B + 1];
SET agreed[B + 1];            /* and acceptances */
SET said[(B + 1) * N];        /* whom those do not hear, in the phase that it is in */

byte i, count, living, lowest; /* zero between steps */
SET set;
bool all, legit, bad;

#define alive(r) (!has(dead, r))
#define open(r) (alive(r) && decided[r] == 0)
#define leads(b, l) (open(l) && heard[b] != 0 && promised[l] == (b))

#ifdef NOACK
#define HEEDED(mine, theirs) true
#else
#define HEEDED(mine, theirs) (((mine) & (ALL - (theirs))) == 0)
#endif

/* Is `set` a quorum for the leader l of ballot b, with what its members said? Sets `legit`. */
inline quorum(b, l)
{
    all = true; lowest = N;
    do
    :: i < N ->
        count = count + has(set, i);
        if
        :: has(gone[l], i)
        :: else ->
            living++;
            lowest = (lowest == N -> i : lowest);
            all = all && has(set, i) && (i == l || HEEDED(gone[l], said[at(b, i)]))
        fi;
        i++
    :: else -> break
    od;
#ifdef LIVING
    legit = all || 2 * count > living || (2 * count == living && has(set, lowest));
#else
    legit = all || 2 * count > N || (2 * count == N && has(set, 0));
#endif
    i = 0; set = 0; count = 0; living = 0; lowest = 0; all = false
}

/* Two that live never decide differently; nor do a living and a dead one unless half of the ranks
 * have died. */
#ifndef JUDGE
#define JUDGE assert(!bad)
#endif
inline decide(r, v)
{
    decided[r] = v;
    do
    :: i < N -> count = count + has(dead, i); i++
    :: else -> i = 0; break
    od;
    do
    :: i < N ->
        bad = bad || (decided[i] != 0 && decided[i] != v && (alive(i) || 2 * count < N));
        i++
    :: else -> break
    od;
    JUDGE;
    i = 0; count = 0
}

/* What was sent to the leader of ballot b is of no use to it any more. */
inline silence(b)
{
    do
    :: i < N ->
        sent[at(b, i)] = 0; sent_value[at(b, i)] = 0; sent_gone[at(b, i)] = 0; said[at(b, i)] = 0;
        i++
    :: else -> i = 0; break
    od
}

/* A ballot whose leader died, learned the decision or promised a higher one goes no further, but
 * may still be heard of. */
#define END(b, l) \
    if :: heard[b] != 0 && !leads(b, l) -> heard[b] = bit(l); best[b] = 0; best_value[b] = 0; \
          agreed[b] = 0; silence(b) \
       :: else fi;

#ifdef FRESH
#define WANTS(b) false
#else
#define WANTS(b) best[b] != 0
#endif
#ifdef NOPROMISE
#define NOT_BELOW(b, r) (accepted[r] <= b)
#else
#define NOT_BELOW(b, r) (promised[r] <= b)
#endif

/* ---- the steps: when each may be taken, and what it does ----
 * tests/model/replay.pml takes the same ones. */

#define MAY_START(b, l) (open(l) && promised[l] < b)
#define START(b, l) \
    promised[l] = b; heard[b] = bit(l); best[b] = accepted[l]; best_value[b] = value[l]; \
    END_BALLOTS skip

#define MAY_PROPOSE(b, l) (leads(b, l) && proposal[b] == 0) /* and does if there is a quorum */
#define PROPOSE(b, l) \
    set = heard[b]; quorum(b, l); \
    if :: legit -> proposal[b] = (WANTS(b) -> best_value[b] : b); accepted[l] = b; \
          value[l] = proposal[b]; agreed[b] = bit(l); best[b] = 0; best_value[b] = 0; silence(b) \
       :: else fi; legit = false

#define MAY_DECIDE(b, l) (leads(b, l) && proposal[b] != 0)  /* and does if there is a quorum */
#define DECIDE(b, l) \
    set = agreed[b]; quorum(b, l); \
    if :: legit -> decide(l, proposal[b]); END_BALLOTS skip \
       :: else fi; legit = false

#define MAY_PROMISE(b, r, l) \
    (r != l && heard[b] != 0 && open(r) && promised[r] <= b && accepted[r] < b && \
     !has(gone[r], l) && \
     (promised[r] < b || (leads(b, l) && proposal[b] == 0 && \
                          (sent[at(b, r)] == 0 || sent_gone[at(b, r)] != gone[r]))))
#define PROMISE(b, r, l) \
    promised[r] = b; \
    if :: proposal[b] == 0 -> sent[at(b, r)] = 1 + accepted[r]; sent_value[at(b, r)] = value[r]; \
          sent_gone[at(b, r)] = gone[r] \
       :: else fi; END_BALLOTS skip

/* g is what r said about the gone */
#define NEWS(b, r, in, g) (!has(in, r) || ((g) | said[at(b, r)]) != said[at(b, r)])
#define MAY_HEAR_PROMISE(b, r, l, g) \
    (leads(b, l) && proposal[b] == 0 && sent[at(b, r)] != 0 && !has(gone[l], r) && \
     NEWS(b, r, heard[b], g))
#define HEAR_PROMISE(b, r, l, g) \
    heard[b] = heard[b] | bit(r); said[at(b, r)] = said[at(b, r)] | (g); \
    if :: sent[at(b, r)] > 1 + best[b] -> best[b] = sent[at(b, r)] - 1; \
          best_value[b] = sent_value[at(b, r)] \
       :: else fi

#define MAY_ACCEPT(b, r, l) \
    (r != l && proposal[b] != 0 && open(r) && NOT_BELOW(b, r) && !has(gone[r], l) && \
     (accepted[r] < b || (leads(b, l) && sent_gone[at(b, r)] != gone[r])))
#define ACCEPT(b, r, l) \
    promised[r] = (promised[r] > b -> promised[r] : b); accepted[r] = b; value[r] = proposal[b]; \
    sent[at(b, r)] = 1; sent_gone[at(b, r)] = gone[r]; END_BALLOTS skip

#define MAY_HEAR_ACCEPTED(b, r, l, g) \
    (leads(b, l) && proposal[b] != 0 && sent[at(b, r)] != 0 && !has(gone[l], r) && \
     NEWS(b, r, agreed[b], g))
#define HEAR_ACCEPTED(b, r, l, g) \
    agreed[b] = agreed[b] | bit(r); said[at(b, r)] = said[at(b, r)] | (g)

#define MAY_LEARN(r, s) (decided[s] != 0 && open(r) && !has(gone[r], s))
#define LEARN(r, s) decide(r, decided[s]); END_BALLOTS skip

#define MAY_PROVE(r, s) (alive(r) && has(dead, s) && !has(gone[r], s))
#define PROVE(r, s) gone[r] = gone[r] | bit(s)

/* Nobody asks any more what a dead rank knew. */
#define MAY_DIE(r) (alive(r) && (dead | bit(r)) != ALL)
#define DIE(r) \
    dead = dead | bit(r); promised[r] = 0; accepted[r] = 0; value[r] = 0; gone[r] = 0; \
    END_BALLOTS skip

/* ---- all of them, in any order ---- */

#define LEADER(b, l) \
    :: d_step { MAY_START(b, l) -> START(b, l) } \
    :: d_step { MAY_PROPOSE(b, l) -> PROPOSE(b, l) } \
    :: d_step { MAY_DECIDE(b, l) -> DECIDE(b, l) }
#define ACCEPTOR(b, r, l) \
    :: d_step { MAY_PROMISE(b, r, l) -> PROMISE(b, r, l) } \
    :: d_step { MAY_HEAR_PROMISE(b, r, l, sent_gone[at(b, r)]) -> \
                HEAR_PROMISE(b, r, l, sent_gone[at(b, r)]) } \
    :: d_step { MAY_ACCEPT(b, r, l) -> ACCEPT(b, r, l) } \
    :: d_step { MAY_HEAR_ACCEPTED(b, r, l, sent_gone[at(b, r)]) -> \
                HEAR_ACCEPTED(b, r, l, sent_gone[at(b, r)]) }
#define PAIR(r, s, unused) \
    :: d_step { MAY_LEARN(r, s) -> LEARN(r, s) } \
    :: d_step { MAY_PROVE(r, s) -> PROVE(r, s) }
#define RANK(r) \
    :: d_step { MAY_DIE(r) -> DIE(r) }
#define LEADS(b, l) LEADER(b, l) EACH_RANK(ACCEPTOR, b, l)

#ifndef REPLAY
active proctype world()
{
    do
    EACH_BALLOT(LEADS)
    RANK(0) EACH_RANK(PAIR, 0, 0)
    RANK(1) EACH_RANK(PAIR, 1, 0)
    RANK(2) EACH_RANK(PAIR, 2, 0)
#if N > 3
    RANK(3) EACH_RANK(PAIR, 3, 0)
#endif
    :: true -> skip /* the end of all steps is not a deadlock */
    od
}
#endif
