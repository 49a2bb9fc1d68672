/* Inside algo only: FTCCL_ALGO's text as bits, see select.c. */
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

#endif
