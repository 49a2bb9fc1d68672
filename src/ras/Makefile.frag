# the responder: answers clients about the ranks of this host
src_libftcore_la_SOURCES += src/ras/ras.h src/ras/internal.h src/ras/server.c src/ras/client.c \
	src/ras/port.c src/ras/look.c src/ras/report.c src/ras/text.c src/ras/monitor.c \
	src/ras/messages.c src/ras/questions.c src/ras/hosts.c src/ras/fetch.c
