src_libftcore_la_SOURCES += src/membership/membership.h src/membership/bootstrap.h \
	src/membership/service.h src/membership/wire.c src/membership/id.c src/membership/gather.c \
	src/membership/service.c src/membership/conn.c src/membership/dial.c src/membership/join.c \
	src/membership/grow.c src/membership/detect.c src/membership/agree.h \
	src/membership/agree.c src/membership/agree_ballot.c src/membership/agree_value.c \
	src/membership/agree_wire.c \
	src/membership/managed.h src/membership/managed_wire.c \
	src/membership/coord.h src/membership/coord_parts.h src/membership/coord.c \
	src/membership/coord_table.c src/membership/coord_roles.c src/membership/coord_held.c \
	src/membership/coord_quorum.c src/membership/coord_view.c src/membership/coord_waits.c
src_libftcore_la_SOURCES += src/membership/coord_server.h \
	src/membership/coord_server.c src/membership/coord_listen.c src/membership/coord_conn.c \
	src/membership/coord_out.c \
	src/membership/client.h src/membership/client.c src/membership/client_conn.c \
	src/membership/client_view.c
src_libftcore_la_SOURCES += src/membership/coord_show.c
