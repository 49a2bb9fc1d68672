# ftccld; its master is a library of its own for tests.
noinst_LTLIBRARIES += tools/master/libmaster.la
tools_master_libmaster_la_SOURCES = tools/master/master.h tools/master/master.c \
	tools/master/hosts.c tools/master/all.c tools/master/suspects.c tools/master/stacks.c \
	tools/master/pace.c \
	tools/master/show.c \
	tools/master/paths.h tools/master/paths.c tools/master/paths_file.c \
	tools/master/paths_show.h tools/master/paths_show.c tools/master/paths_map.c \
	tools/master/paths_mesh.c \
	tools/master/members.h tools/master/members.c tools/master/members_show.c
tools_master_libmaster_la_LIBADD = tools/agent/libagent.la src/path/liballocate.la
if HAVE_STORE
# Which of several ftccld leads.
tools_master_libmaster_la_SOURCES += tools/master/members_lead.c tools/master/store.h \
	tools/master/store.c \
	tools/master/etcd.h tools/master/etcd.c
tools_master_libmaster_la_LIBADD += $(CURL_LIBS) $(JANSSON_LIBS)
else
tools_master_libmaster_la_SOURCES += tools/master/members_alone.c
endif
tools_master_libmaster_la_CFLAGS = $(AM_CFLAGS) $(CURL_CFLAGS) $(JANSSON_CFLAGS)
bin_PROGRAMS += tools/ftccld
tools_ftccld_SOURCES = tools/master/ftccld.c
tools_ftccld_LDADD = tools/master/libmaster.la
