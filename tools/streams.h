/* Standard streams of the tools. */
#ifndef FT_TOOLS_STREAMS_H
#define FT_TOOLS_STREAMS_H

/* First in main. Those that are closed are taken, so that no file of ours comes to their place; at
 * the end of the process its status is 1, with a sentence, if what it printed has not all
 * arrived. */
void streams_open(const char *program);

#endif
