# shared memory, while signals come
if HAVE_GTEST
check_PROGRAMS += tests/unit/shmem_test
TESTS += tests/unit/shmem_test
tests_unit_shmem_test_SOURCES = tests/unit/shmem_test.cc
tests_unit_shmem_test_CPPFLAGS = $(gtest_cppflags)
tests_unit_shmem_test_LDFLAGS = -Wl,--wrap=posix_fallocate
tests_unit_shmem_test_LDADD = src/libftcore.la $(gtest_libs)
endif
