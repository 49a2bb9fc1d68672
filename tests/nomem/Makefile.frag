# Single failures of what the library takes: `make check` runs a sample, `make check-nomem` all.
if HAVE_GTEST
nomem_program = tests/nomem/nomem_test
check_PROGRAMS += $(nomem_program)
TESTS += $(nomem_program)
SLOW_TESTS += $(nomem_program)
tests_nomem_nomem_test_SOURCES = tests/nomem/nomem_test.cc tests/nomem/story.cc \
    tests/nomem/story.h tests/nomem/fail.cc \
	tests/nomem/fail.h
tests_nomem_nomem_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
nomem_calls = malloc calloc realloc aligned_alloc strdup getaddrinfo mmap fallocate \
    posix_fallocate ftruncate socket accept4 \
	eventfd timerfd_create epoll_create1 memfd_create fopen opendir getifaddrs open openat \
	recvmsg epoll_ctl pthread_create
tests_nomem_nomem_test_LDFLAGS = $(nomem_calls:%=-Wl,--wrap=%)
tests_nomem_nomem_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)

# every single failure of a probing
check_PROGRAMS += tests/nomem/path_test
TESTS += tests/nomem/path_test
tests_nomem_path_test_SOURCES = tests/nomem/path_test.cc tests/nomem/fail.cc tests/nomem/fail.h
tests_nomem_path_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_nomem_path_test_LDFLAGS = $(nomem_calls:%=-Wl,--wrap=%)
tests_nomem_path_test_LDADD = src/libftcore.la $(gtest_libs)

# every single failure of a coordinator
check_PROGRAMS += tests/nomem/coord_test
TESTS += tests/nomem/coord_test
tests_nomem_coord_test_SOURCES = tests/nomem/coord_test.cc tests/nomem/fail.cc tests/nomem/fail.h \
	tests/unit/coord_players.h
tests_nomem_coord_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_nomem_coord_test_LDFLAGS = $(nomem_calls:%=-Wl,--wrap=%)
tests_nomem_coord_test_LDADD = src/libftcore.la $(gtest_libs)

# some single failures of members
check_PROGRAMS += tests/nomem/member_test
TESTS += tests/nomem/member_test
SLOW_TESTS += tests/nomem/member_test
tests_nomem_member_test_SOURCES = tests/nomem/member_test.cc tests/nomem/fail.cc \
	tests/nomem/fail.h
tests_nomem_member_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_nomem_member_test_LDFLAGS = $(nomem_calls:%=-Wl,--wrap=%)
tests_nomem_member_test_LDADD = tests/proc/libproc.la src/libftcore.la $(gtest_libs)
endif

check-nomem: $(nomem_program)
	test -z '$(nomem_program)' || top_builddir=. FT_TEST_SLOWDOWN='$(FT_TEST_SLOWDOWN)' \
		FT_TEST_LIMIT=$${FT_TEST_LIMIT-7200} \
		FT_NOMEM=all $(SHELL) $(srcdir)/tests/limit.sh $(nomem_program)
.PHONY: check-nomem
