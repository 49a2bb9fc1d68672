# Example programs, over the public header only.
noinst_PROGRAMS += examples/hello examples/survive
examples_hello_SOURCES = examples/hello.c
examples_hello_LDADD = src/libftccl.la
examples_survive_SOURCES = examples/survive.c
examples_survive_LDADD = src/libftccl.la
