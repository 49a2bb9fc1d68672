# ftccl-diagnose says for whom a job on this machine waits.
bin_PROGRAMS += tools/ftccl-diagnose
tools_ftccl_diagnose_SOURCES = tools/ftccl-diagnose.c tools/diagnose.h tools/diagnose_print.c \
	tools/diagnose_job.c tools/diagnose_flight.c
tools_ftccl_diagnose_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tools_ftccl_diagnose_LDADD = src/libftcore.la $(JANSSON_LIBS) -lm
