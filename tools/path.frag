# ftccl-path asks the master of paths, a service of ftccld.
bin_PROGRAMS += tools/ftccl-path
tools_ftccl_path_SOURCES = tools/ftccl-path.c tools/streams.c tools/streams.h
tools_ftccl_path_LDADD = src/libftcore.la
