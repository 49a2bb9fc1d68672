# The frame of ftccl-agent and ftccld.
noinst_LTLIBRARIES += tools/daemon/libdaemon.la
tools_daemon_libdaemon_la_SOURCES = tools/daemon/daemon.h tools/daemon/loop.c \
	tools/daemon/peer.c tools/daemon/lookup.c \
	tools/daemon/port.c tools/daemon/http.c tools/daemon/page.c \
	tools/daemon/options.c tools/daemon/history.c tools/daemon/past.h \
	tools/daemon/past.c
tools_daemon_libdaemon_la_CFLAGS = $(AM_CFLAGS) $(DAEMONS_CFLAGS)
tools_daemon_libdaemon_la_LIBADD = $(DAEMONS_LIBS)
