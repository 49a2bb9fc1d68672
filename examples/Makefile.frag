EXTRA_DIST += examples/ftccl-agent.service examples/ftccld.service
# Example programs, over the public header only.
noinst_PROGRAMS += examples/hello examples/elastic_allreduce
examples_hello_SOURCES = examples/hello.c
examples_hello_LDADD = src/libftccl.la
examples_elastic_allreduce_SOURCES = examples/elastic_allreduce.c examples/launch.h
examples_elastic_allreduce_LDADD = src/libftccl.la
if HAVE_CURL
noinst_PROGRAMS += examples/replicas
endif
examples_replicas_SOURCES = examples/replicas.c examples/replicas.h examples/replicas_model.c \
	examples/replicas_http.c
examples_replicas_CFLAGS = $(AM_CFLAGS) $(CURL_CFLAGS)
examples_replicas_LDADD = src/libftccl.la $(CURL_LIBS) -lm
