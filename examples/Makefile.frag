EXTRA_DIST += examples/ftccl-agent.service examples/ftccld.service
# Example programs, over the public header only.
noinst_PROGRAMS += examples/hello examples/elastic_allreduce
examples_hello_SOURCES = examples/hello.c
examples_hello_LDADD = src/libftccl.la
examples_elastic_allreduce_SOURCES = examples/elastic_allreduce.c examples/launch.h
examples_elastic_allreduce_LDADD = src/libftccl.la
