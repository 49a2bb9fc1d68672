# ftccl-agent and ftccld need libmicrohttpd and SQLite.
if HAVE_DAEMONS
include tools/daemon/daemon.frag
include tools/agent/agent.frag
endif
