# ftccl-top shows what the ranks of a job do, live.
bin_PROGRAMS += tools/ftccl-top
tools_ftccl_top_SOURCES = tools/ftccl-top.c tools/top.h tools/top_rows.c tools/top_print.c \
	tools/top_screen.c
tools_ftccl_top_CFLAGS = $(AM_CFLAGS) $(NCURSES_CFLAGS)
tools_ftccl_top_LDADD = tools/libdiagnose_files.la src/libftcore.la $(NCURSES_LIBS) -lm
