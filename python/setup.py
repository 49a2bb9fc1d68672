"""Builds ftccl._ftccl with the library that pkg-config or FTCCL_PREFIX names; pyproject.toml has
the rest."""

import os
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ftccl_build  # noqa: E402

# One binary for every Python from 3.9 on; interpreters without a GIL have no limited API yet.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildExtension(build_ext):
    """Generates the source first: an sdist needs no library, a build does."""

    def run(self):
        os.makedirs(self.build_temp, exist_ok=True)
        for extension in self.extensions:
            source = os.path.join(self.build_temp, "_ftccl.c")
            include, library = ftccl_build.generate(source, self.distribution.get_version())
            extension.sources = [source]
            extension.include_dirs = [include]
            extension.library_dirs = [library]
            extension.runtime_library_dirs = [library]
        super().run()


setup(
    ext_modules=[
        Extension(
            "ftccl._ftccl",
            sources=[],
            libraries=["ftccl"],
            py_limited_api=ABI3,
            define_macros=[("Py_LIMITED_API", "0x03090000")] if ABI3 else [],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp39"}} if ABI3 else {},
)
