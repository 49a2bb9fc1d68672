/*
 * The steps of tests/model/agree.pml in the order of a trace. tests/model/replay writes a guide: a
 * process that says one line of a trace after the other on `script`, with what the line contains,
 * each ballot by its place among the ballots of the run. Each line must be a step that the model
 * can take now, or none to it, and must say what the model then has in its state; otherwise it is
 * refused and the rest of its run is passed over.
 *
 * The model's step of an acceptor is the arrival of a request together with the answer: it is taken
 * when the answer is sent, by a rank that got the request. A message that goes out again, or
 * arrives where it does not count, is no step. A promise or an acceptance that a later one of the
 * same rank has overtaken counts with what it said of the dead: hearing it late is hearing it
 * before the later one was sent.
 */
#define REPLAY
#define SET short
#define JUDGE skip
#define END_BALLOTS do :: turn <= B -> END(turn, leader[turn]) turn++ :: else -> turn = 1; break od;
byte leader[B + 1], turn = 1;
#include "agree.pml"

/* What a line is. S_: a message is sent; G_: it arrives. */
#define RUN 0
#define BALLOT 1
#define OVER 2
#define PROOF 3
#define KILL 4
#define DECIDED 5
#define S_ENTER 11
#define S_PREPARE 12
#define S_PROMISE 13
#define S_ACCEPT 14
#define S_ACCEPTED 15
#define S_REFUSE 16
#define S_DECIDE 17
#define G_ENTER 21
#define G_PREPARE 22
#define G_PROMISE 23
#define G_ACCEPT 24
#define G_ACCEPTED 25
#define G_REFUSE 26
#define G_DECIDE 27

/* What, rank, other, ballot, accepted ballot, value, gone, message, line. Equal messages have the
 * same number. */
chan script = [0] of {byte, byte, byte, byte, byte, byte, short, short, int}
byte what, r, o, b, l, a, v, x;
short g, news, m;
int line;
bool ok, hears, refused;

bool wire[WIRE + 1];          /* which messages have been sent */
byte asked[(B + 1) * N];      /* what a rank has heard of the ballot: 1 its PREPARE, 2 its ACCEPT */
byte told_by[N];              /* 1 + the rank whose DECIDE arrived */

inline clear()
{
    do
    :: x < N ->
       gone[x] = 0; promised[x] = 0; accepted[x] = 0; value[x] = 0; decided[x] = 0; told_by[x] = 0;
       x++
    :: else -> x = 0; break
    od;
    do
    :: turn <= B ->
       heard[turn] = 0; best[turn] = 0; best_value[turn] = 0; proposal[turn] = 0;
       agreed[turn] = 0; leader[turn] = 0;
       silence(turn);
       do
       :: x < N -> asked[at(turn, x)] = 0; x++
       :: else -> x = 0; break
       od;
       turn++
    :: else -> turn = 1; break
    od;
    do
    :: m > 0 -> wire[m] = false; m--
    :: else -> break
    od;
    dead = 0; bad = false; refused = false
}

/* ---- a message goes out: what it says is what its sender has ---- */

inline sends()
{
    ok = alive(r) && gone[r] == g && (decided[r] == 0 || what == S_DECIDE);
    if
    :: what == S_PREPARE && ok && r == l && heard[b] == 0 && MAY_START(b, r) -> START(b, r)
    :: what == S_PROMISE && ok && o == l && asked[at(b, r)] != 0 && MAY_PROMISE(b, r, l) ->
       PROMISE(b, r, l)
    :: what == S_ACCEPT && ok && r == l && MAY_PROPOSE(b, r) -> PROPOSE(b, r)
    :: what == S_ACCEPTED && ok && o == l && asked[at(b, r)] == 2 && MAY_ACCEPT(b, r, l) ->
       ACCEPT(b, r, l)
    :: else
    fi;
    ok = ok && promised[r] == b;
    if
    :: what == S_PREPARE -> ok = ok && leads(b, r) && r == l && proposal[b] == 0
    :: what == S_PROMISE ->
       ok = ok && o == l && asked[at(b, r)] != 0 && accepted[r] < b && a == accepted[r] &&
            v == value[r]
    :: what == S_ACCEPT -> ok = ok && leads(b, r) && r == l && v != 0 && proposal[b] == v
    :: what == S_ACCEPTED -> ok = ok && o == l && accepted[r] == b
    :: what == S_DECIDE -> ok = ok && v != 0 && decided[r] == v && proposal[a] == v
    :: else
    fi;
    wire[m] = true
}

/* ---- a message arrives: once sent, it may ---- */

inline learns_of_the_dead()
{
    news = g & (ALL - (gone[r] | bit(r) | bit(o)));
    do
    :: x < N && has(news, x) && MAY_PROVE(r, x) -> PROVE(r, x); x++
    :: x < N && has(news, x) && !MAY_PROVE(r, x) -> ok = false; x++
    :: x < N && !has(news, x) -> x++
    :: else -> x = 0; break
    od
}

inline gets()
{
    ok = alive(r) && wire[m];
    hears = ok && open(r) && !has(gone[r], o);
    told_by[r] = 0;
    if
    :: hears -> learns_of_the_dead()
    :: else
    fi;
    if
    :: what == G_PREPARE && hears ->
       ok = ok && heard[b] != 0 && o == l;
       asked[at(b, r)] = (asked[at(b, r)] == 0 -> 1 : asked[at(b, r)])
    :: what == G_ACCEPT && hears -> ok = ok && proposal[b] == v && o == l; asked[at(b, r)] = 2
    :: what == G_PROMISE && hears && r == l && MAY_HEAR_PROMISE(b, o, r, g) ->
       ok = ok && sent[at(b, o)] == 1 + a && sent_value[at(b, o)] == v &&
            (g | sent_gone[at(b, o)]) == sent_gone[at(b, o)];
       HEAR_PROMISE(b, o, r, g)
    :: what == G_ACCEPTED && hears && r == l && MAY_HEAR_ACCEPTED(b, o, r, g) ->
       ok = ok && (g | sent_gone[at(b, o)]) == sent_gone[at(b, o)];
       HEAR_ACCEPTED(b, o, r, g)
    :: what == G_DECIDE && hears -> ok = ok && decided[o] == v; told_by[r] = 1 + o
    :: else
    fi
}

/* ---- the rest ---- */

/* Told, or by the rank's own ballot. With nobody left to send to, a ballot is not seen before. */
inline decides()
{
    ok = alive(r) && gone[r] == g && decided[r] == 0;
    o = told_by[r] - 1;
    if
    :: ok && told_by[r] != 0 && MAY_LEARN(r, o) -> LEARN(r, o)
    :: ok && told_by[r] == 0 && r == l ->
       if
       :: heard[b] == 0 && MAY_START(b, r) -> START(b, r)
       :: else
       fi;
       if
       :: MAY_PROPOSE(b, r) -> PROPOSE(b, r)
       :: else
       fi;
       if
       :: MAY_DECIDE(b, r) -> DECIDE(b, r)
       :: else
       fi
    :: else
    fi;
    ok = ok && promised[r] == b && v != 0 && decided[r] == v && proposal[a] == v && !bad
}

/* The last death is no step of the model: nothing can follow. */
inline dies()
{
    ok = alive(r);
    if
    :: MAY_DIE(r) -> DIE(r)
    :: else -> dead = ALL
    fi
}

inline proven()
{
    ok = alive(r) && has(dead, o);
    if
    :: ok && MAY_PROVE(r, o) -> PROVE(r, o)
    :: else
    fi
}

inline refuse()
{
    refused = true;
    printf("refuses %d: rank %d alive %d promised %d accepted %d value %d decided %d gone %d; ",
           line, r, alive(r), promised[r], accepted[r], value[r], decided[r], gone[r]);
    printf("ballot %d of %d: heard of %d proposal %d accepted by %d\n",
           b, l, heard[b], proposal[b], agreed[b])
}

active proctype replay()
{
    do
    :: script ? what, r, o, b, a, v, g, m, line ->
       d_step {
           l = leader[b];
           ok = true;
           if
           :: what == RUN -> clear()
           :: what == BALLOT -> leader[b] = r
           :: what == OVER && refused -> skip
           :: what == OVER && !refused -> printf("accepts %d:\n", line)
           :: what > OVER && refused -> skip
           :: what > OVER && !refused ->
              if
              :: what == KILL -> dies()
              :: what == PROOF -> proven()
              :: what == DECIDED -> decides()
              :: what >= S_ENTER && what < G_ENTER -> sends()
              :: what >= G_ENTER -> gets()
              fi;
              if
              :: ok -> skip
              :: else -> refuse()
              fi
           fi
       }
    od
}
