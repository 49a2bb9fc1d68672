/* Standard streams of the tools. */
#ifndef FT_TOOLS_STREAMS_H
#define FT_TOOLS_STREAMS_H

/* Call it first in main. It occupies standard streams that are closed, so that no file of ours gets
 * their number. If not everything that was printed could be written, the process ends with status 1
 * and a sentence. */
void streams_open(const char *program);

#endif
