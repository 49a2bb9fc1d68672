# What ftccl-agent and ftccld share.
noinst_LTLIBRARIES += tools/agent/libagent.la
tools_agent_libagent_la_SOURCES = tools/agent/agent.h tools/agent/agent.c tools/agent/keep.c \
	tools/agent/pace.h tools/agent/pace.c tools/agent/links.c \
	tools/agent/inspector.c \
	tools/agent/look.h tools/agent/look.c tools/agent/rows.h tools/agent/rows.c \
	tools/agent/collect.h tools/agent/collect.c tools/agent/stacks.h tools/agent/stacks.c \
	tools/agent/checks.h tools/agent/checks_parts.h tools/agent/checks.c \
	tools/agent/check_network.c tools/agent/check_machine.c tools/agent/check_gpu.c
tools_agent_libagent_la_LIBADD = tools/daemon/libdaemon.la tools/libdiagnose_files.la \
	src/libftcore.la -lm
bin_PROGRAMS += tools/ftccl-agent
tools_ftccl_agent_SOURCES = tools/agent/ftccl-agent.c tools/agent/members.h \
	tools/agent/members.c tools/agent/members_show.c
tools_ftccl_agent_LDADD = tools/agent/libagent.la
