# The Python package's tests: not in `make check`, because they fetch packages. check-python-suites:
# the peers' own suites over the backend for torch, with the Python that FT_TORCH_PYTHON names.
EXTRA_DIST += tests/python/conftest.py tests/python/ranks.py tests/python/run.sh \
	tests/python/suites/distributed.py tests/python/suites/fault_tolerance.py \
	tests/python/suites/outcomes.py tests/python/suites/run.py \
	tests/python/suites/torchft_files.py tests/python/suites/torchft_groups.py \
	tests/python/test_bad_input.py tests/python/test_build.py tests/python/test_collectives.py \
	tests/python/test_endings.py tests/python/test_failures.py tests/python/test_launch.py \
	tests/python/test_streams.py tests/python/test_torch_backend.py \
	tests/python/test_torch_reconfigure.py tests/python/test_torch_rough.py \
	tests/python/test_torchft.py tests/python/test_torchrun.py
check-python-suites: all
	FT_PYTHON_SUITES="$${FT_PYTHON_SUITES:-all}" $(MAKE) check-python
check-python: all
	top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' \
		FT_SANITIZER='$(FT_SANITIZER)' \
		$(SHELL) $(top_srcdir)/tests/python/run.sh || [ $$? -eq 77 ]
mostlyclean-local:
	rm -rf check-python
.PHONY: check-python check-python-suites
