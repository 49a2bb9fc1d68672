src_libftcore_la_SOURCES += src/telemetry/telemetry.h src/telemetry/format.h \
	src/telemetry/writer.h src/telemetry/file.c src/telemetry/writer.c src/telemetry/reader.c \
	src/telemetry/print.c src/telemetry/saved.h src/telemetry/snapshot.c src/telemetry/save.c \
	src/telemetry/dump.c src/telemetry/processes.c src/telemetry/threads.c \
	src/telemetry/collect.h src/telemetry/snapshot_links.c src/telemetry/clocks.c \
	src/telemetry/look.c src/telemetry/latency.c src/telemetry/user_threads.c \
	src/telemetry/pack.c src/telemetry/validation.c
