src_libftcore_la_SOURCES += src/transport/transport.h src/transport/rxq.h src/transport/rxq.c \
	src/transport/txq.c
src_libftcore_la_SOURCES += src/transport/net.c src/transport/news.h src/transport/news.c
src_libftcore_la_SOURCES += src/transport/slots.h src/transport/slots.c src/transport/local.h \
	src/transport/local.c src/transport/local_send.c src/transport/local_short.c
src_libftcore_la_SOURCES += src/transport/pull.h src/transport/pull.c
src_libftcore_la_SOURCES += src/transport/inproc.c
src_libftcore_la_SOURCES += src/transport/shm.h src/transport/shm.c src/transport/shm_setup.c
if HAVE_VERBS
src_libftcore_la_SOURCES += src/transport/verbs/verbs.h src/transport/verbs/load.c \
	src/transport/verbs/hca.c src/transport/verbs/gid.c src/transport/verbs/errors.c \
	src/transport/verbs/ports.c src/transport/verbs/fabric.c src/transport/verbs/way.c \
	src/transport/verbs/queue.c src/transport/verbs/events.c src/transport/verbs/reap.c \
	src/transport/verbs/transport.c
endif
src_libftcore_la_SOURCES += src/transport/list.c
src_libftcore_la_SOURCES += src/transport/tcp/tcp.h src/transport/tcp/tcp.c \
	src/transport/tcp/link.c src/transport/tcp/conn.c src/transport/tcp/tune.c \
	src/transport/tcp/silence.c src/transport/tcp/measure.c src/transport/tcp/out.c \
	src/transport/tcp/move.c src/transport/tcp/paths.c \
	src/transport/tcp/spread.c src/transport/tcp/remake.c src/transport/tcp/short.c
src_libftcore_la_SOURCES += src/transport/rma/fabric.h src/transport/rma/rma.h \
	src/transport/rma/inside.h src/transport/rma/rma.c src/transport/rma/link.c \
	src/transport/rma/ways.c src/transport/rma/side_messages.c src/transport/rma/post.c \
	src/transport/rma/send.c src/transport/rma/recv.c src/transport/rma/memory.c
src_libftcore_la_SOURCES += src/transport/fault.c
src_libftcore_la_SOURCES += src/transport/side.h src/transport/side_parts.h \
	src/transport/side.c src/transport/side_session.c src/transport/side_conn.c
src_libftcore_la_SOURCES += src/transport/net_plugin/abi.h src/transport/net_plugin/plugin.h \
	src/transport/net_plugin/plugin.c src/transport/net_plugin/net.h \
	src/transport/net_plugin/net.c src/transport/net_plugin/setup.c \
	src/transport/net_plugin/send.c src/transport/net_plugin/recv.c
if HAVE_LIBFABRIC
src_libftcore_la_SOURCES += src/transport/ofi/ofi.h src/transport/ofi/ofi.c \
	src/transport/ofi/load.c src/transport/ofi/way.c
endif
