bin_PROGRAMS += tools/ftccl-info
tools_ftccl_info_SOURCES = tools/ftccl-info.c tools/info.h tools/info_build.c tools/info_fabrics.c \
	tools/info_plan.c tools/info_memory.c tools/info_paths.c tools/info_standbys.c \
	tools/info_topology.c tools/streams.c tools/streams.h
tools_ftccl_info_LDADD = src/libftcore.la $(HWLOC_LIBS) -lm
