# when a job is slow, and who makes it slow
src_libftcore_la_SOURCES += src/diagnose/slow.h src/diagnose/slow_job.h src/diagnose/slow_stats.h \
	src/diagnose/slow_job.c src/diagnose/slow_ranks.c src/diagnose/slow_paths.c \
	src/diagnose/slow_steps.c src/diagnose/slow_stats.c src/diagnose/slow_period.c \
	src/diagnose/slow_track.c src/diagnose/slow_compute.c src/diagnose/slow_matrix.c
src_libftcore_la_LIBADD += -lm
