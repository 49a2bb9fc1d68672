/* Inside algo only: FTCCL_ALGO's text as bits, see select.c, and the measured choices, see
 * rules.c. */
#ifndef FT_ALGO_CHOICE_H
#define FT_ALGO_CHOICE_H

#include "algo/algo.h"

enum { FT_CHOICE_GENERAL = FT_SEND, FT_CHOICE_PARTS };

struct ft_choice {
    bool given;    /* the text has this part */
    bool listed;   /* ... and names algorithms to be used, not only ones to be left out */
    uint32_t only; /* bit per entry of ft_algos */
    uint32_t excluded;
};

/* Parts 0..FT_SEND-1 are those of the kinds. FT_USAGE names what is not known. */
int ft_choice_parse(const char *text, struct ft_choice parts[FT_CHOICE_PARTS]);
bool ft_choice_allows(const struct ft_choice parts[FT_CHOICE_PARTS], enum ft_kind kind, int algo);
/* upper and lower case are the same */
bool ft_word_is(const char *text, size_t len, const char *name);

/* What follows "best" in a line that strtok_r() is taking apart; appends to the tuning's rules. */
int ft_rule_parse(struct ft_tuning *, const char *path, int line, char **rest);
/* What "over=" means with that word, or -1. A network that the table names is noted. */
int ft_over_of(struct ft_tuning *, const char *name);
/* That of a network; FT_OVER_NETWORK: the table does not name it. */
int ft_over_network(const struct ft_tuning *, const char *name);
/* The first that matches, or NULL. */
const struct ft_rule *ft_rule_find(const struct ft_tuning *, const struct ft_view *,
                                   const struct ft_coll *);
void ft_rule_apply(const struct ft_rule *, struct ft_tuning *);
/* The one that the selection follows: it is allowed and fits. */
const struct ft_rule *ft_rule_followed(const struct ft_view *, const struct ft_coll *,
                                       const struct ft_tuning *,
                                       const struct ft_choice parts[FT_CHOICE_PARTS]);

#endif
