src_libftcore_la_SOURCES += src/membership/membership.h src/membership/bootstrap.h \
	src/membership/service.h src/membership/wire.c src/membership/id.c src/membership/gather.c \
	src/membership/service.c src/membership/conn.c src/membership/dial.c src/membership/join.c \
	src/membership/grow.c src/membership/detect.c src/membership/agree.h \
	src/membership/agree.c src/membership/agree_ballot.c src/membership/agree_value.c \
	src/membership/agree_wire.c
