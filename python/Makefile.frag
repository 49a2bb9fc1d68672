# The Python package. With --with-python, `make install` installs it for that interpreter, built
# against the library that has just been installed; a build below DESTDIR cannot be used yet, so
# there it is left to whoever installs the package.
python_dist = python/MANIFEST.in python/README.md python/ftccl_build.py python/pyproject.toml \
	python/setup.py python/examples/all_reduce.py python/examples/ddp_reconfigure.py \
	python/examples/digits.py python/examples/elastic_torchrun.py \
	python/examples/torchft_ddp.py python/src/ftccl/__init__.py python/src/ftccl/_buffers.py \
	python/src/ftccl/_communicator.py python/src/ftccl/_config.py python/src/ftccl/_errors.py \
	python/src/ftccl/_ftccl.pyi python/src/ftccl/_launch.py python/src/ftccl/_lib.py \
	python/src/ftccl/_lifetime.py python/src/ftccl/_memory.py python/src/ftccl/_operations.py \
	python/src/ftccl/_stream.py python/src/ftccl/_version.py python/src/ftccl/_waits.py \
	python/src/ftccl/py.typed \
	python/src/ftccl/torch/__init__.py \
	python/src/ftccl/torch/build.py \
	python/src/ftccl/torch/csrc/backend.cpp \
	python/src/ftccl/torch/csrc/backend.hpp \
	python/src/ftccl/torch/csrc/bind.cpp \
	python/src/ftccl/torch/csrc/exchange.cpp \
	python/src/ftccl/torch/csrc/exchange.hpp \
	python/src/ftccl/torch/csrc/handles.cpp \
	python/src/ftccl/torch/csrc/handles.hpp \
	python/src/ftccl/torch/csrc/library.cpp \
	python/src/ftccl/torch/csrc/library.hpp \
	python/src/ftccl/torch/csrc/mailbox.cpp \
	python/src/ftccl/torch/csrc/mailbox.hpp \
	python/src/ftccl/torch/csrc/reconfigure.cpp \
	python/src/ftccl/torch/csrc/tensors.cpp \
	python/src/ftccl/torch/csrc/tensors.hpp \
	python/src/ftccl/torch/csrc/work.cpp \
	python/src/ftccl/torch/csrc/work.hpp
EXTRA_DIST += $(python_dist)
with_python = @with_python@
install-exec-hook:
	@case "$(with_python):$(DESTDIR)" in no:*) ;; \
	*:?*) echo "the Python package is not installed below DESTDIR:" \
		"pip install it when the library is in $(prefix)" ;; \
	*) for file in $(python_dist); do \
		$(MKDIR_P) "`dirname $$file`" && { cmp -s $(srcdir)/$$file $$file || \
		cp -f $(srcdir)/$$file $$file; } || exit 1; done && \
		FTCCL_PREFIX= \
		PKG_CONFIG_PATH="$(pkgconfigdir)$${PKG_CONFIG_PATH:+:$$PKG_CONFIG_PATH}" \
		'$(with_python)' -m pip install --no-deps --no-build-isolation ./python ;; esac
uninstall-hook:
	@test '$(with_python)' = no || '$(with_python)' -m pip uninstall -y ftccl
