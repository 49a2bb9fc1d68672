/* Private to algo: the text of FTCCL_ALGO as bits (see select.c), and the measured choices (see
 * rules.c). */
#ifndef FT_ALGO_CHOICE_H
#define FT_ALGO_CHOICE_H

#include "algo/algo.h"

enum { FT_CHOICE_GENERAL = FT_SEND, FT_CHOICE_PARTS };

struct ft_choice {
    bool given;    /* the text has this part */
    bool listed;   /* the part names algorithms to use, not only ones to exclude */
    uint32_t only; /* one bit per entry of ft_algos */
    uint32_t excluded;
};

/* Parses the text. Parts 0..FT_SEND-1 belong to the kinds; FT_CHOICE_GENERAL is the general part.
 * Returns FT_USAGE with a sentence that quotes an unknown name. */
int ft_choice_parse(const char *text, struct ft_choice parts[FT_CHOICE_PARTS]);
bool ft_choice_allows(const struct ft_choice parts[FT_CHOICE_PARTS], enum ft_kind kind, int algo);
/* ignores case */
bool ft_word_is(const char *text, size_t len, const char *name);

/* Parses the rest of a line after "best", which strtok_r() is taking apart, and appends a rule to
 * the rules. Returns FT_INVAL with a sentence if the line is wrong. */
int ft_rule_parse(struct ft_rules *, const char *path, int line, char **rest);
/* What "over=" means with that word, or -1. A network that the table names is noted. */
int ft_over_of(struct ft_rules *, const char *name);
/* That of a network; FT_OVER_NETWORK: the table does not name it. */
int ft_over_network(const struct ft_rules *, const char *name);
/* Returns the first rule that matches, or NULL. */
const struct ft_rule *ft_rule_find(const struct ft_tuning *, const struct ft_view *,
                                   const struct ft_coll *);
void ft_rule_apply(const struct ft_rule *, struct ft_tuning *);
/* Returns the rule that the selection follows, or NULL: it matches, FTCCL_ALGO allows its
 * algorithm, and the algorithm fits. */
const struct ft_rule *ft_rule_followed(const struct ft_view *, const struct ft_coll *,
                                       const struct ft_tuning *,
                                       const struct ft_choice parts[FT_CHOICE_PARTS]);

#endif
