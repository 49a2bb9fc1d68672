# Rules about the tree itself. `tests/tidy/measure DIR` prints the measures of any tree.
tidy_tests = tests/tidy/includes_test.sh tests/tidy/calls_test.sh tests/tidy/sizes_test.sh \
	tests/tidy/names_test.sh tests/tidy/rules_test.sh tests/tidy/format_test.sh \
	tests/tidy/words_test.sh tests/tidy/headers_test.sh tests/tidy/manual_test.sh \
	tests/tidy/count_test.sh tests/tidy/nccl_test.sh tests/tidy/status_test.sh \
	tests/tidy/results_test.sh tests/tidy/width_test.sh
TESTS += $(tidy_tests)
EXTRA_DIST += $(tidy_tests) tests/tidy/exceptions.txt tests/tidy/measure tests/tidy/names.py \
	tests/tidy/source.py tests/tidy/path_files tests/tidy/path_files.c
