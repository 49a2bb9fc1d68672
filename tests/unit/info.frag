# ftccl-info
TESTS += tests/unit/info_test.sh
EXTRA_DIST += tests/unit/info_test.sh
