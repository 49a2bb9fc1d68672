# ftccl-diagnose says for whom a job on this machine waits.
noinst_LTLIBRARIES += tools/libdiagnose_files.la
tools_libdiagnose_files_la_SOURCES = tools/diagnose.h tools/diagnose_file.c \
	tools/diagnose_inspector.h \
	tools/diagnose_ranks.h tools/diagnose_ranks.c tools/diagnose_page.h tools/diagnose_page.c \
	tools/diagnose_page_graph.c tools/diagnose_page_maps.c tools/diagnose_page_ranks.c \
	tools/diagnose_page_time.c tools/diagnose_trace.c tools/diagnose_metrics.c \
	tools/diagnose_print.c tools/diagnose_job.c \
	tools/diagnose_page_stacks.c tools/diagnose_stacks.h tools/diagnose_stacks.c \
	tools/diagnose_stacks_print.c tools/diagnose_proc.c tools/diagnose_run.c \
	tools/diagnose_tools.c
bin_PROGRAMS += tools/ftccl-diagnose
tools_ftccl_diagnose_SOURCES = tools/ftccl-diagnose.c tools/diagnose.h \
	tools/diagnose_flight.c tools/diagnose_validate.c
tools_ftccl_diagnose_LDADD = tools/libdiagnose_files.la src/libftcore.la -lm
