bin_PROGRAMS += tools/ftccld
tools_ftccld_SOURCES = tools/master/master.h tools/master/ftccld.c tools/master/master.c \
	tools/master/hosts.c tools/master/all.c tools/master/suspects.c tools/master/show.c
tools_ftccld_LDADD = tools/agent/libagent.la
