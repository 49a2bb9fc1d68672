# ftccl-agent and ftccld need libmicrohttpd and SQLite.
if HAVE_DAEMONS
include tools/daemon/daemon.frag
include tools/agent/agent.frag
include tools/master/master.frag
endif
