# tests/rma
if HAVE_GTEST
check_PROGRAMS += tests/rma/rma_test
tests_rma_rma_test_SOURCES = tests/rma/fake.h tests/rma/fake_fabric.cc tests/rma/fake_side.cc \
	tests/rma/pair.h tests/rma/pair.cc tests/rma/rma_test.cc \
	tests/rma/lies_test.cc tests/rma/rails_test.cc tests/rma/ways_test.cc
tests_rma_rma_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_rma_rma_test_LDADD = src/libftcore.la $(gtest_libs)
TESTS += tests/rma/rma_test
endif
