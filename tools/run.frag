# ftccl-run starts ranks on this machine.
bin_PROGRAMS += tools/ftccl-run
tools_ftccl_run_SOURCES = tools/ftccl-run.c tools/run.h tools/run_options.c tools/run_env.c \
	tools/run_bind.c tools/run_coordinator.c \
	tools/streams.c tools/streams.h
tools_ftccl_run_LDADD = src/libftcore.la $(HWLOC_LIBS)
