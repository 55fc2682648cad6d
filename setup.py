"""The build of the native head, beside what pyproject.toml says: one shared library for every version of Python.

Where there is no C compiler, refocus is installed without it, and the heads of other runtimes serve.
"""

import sys
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = "refocus.edge.runtimes.refocus_native"
FOLDER = "edge/runtimes/native_head"
# Sums may be fused, and nobody asks for errno or traps; the order of operations stays as it is written.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-g0"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi"]


class Build(build_ext):
    """A library that ctypes loads: no module of Python, so its name names no version."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class Wheel(bdist_wheel):
    """A wheel for one platform and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


library = Extension(
    NATIVE,
    [f"{FOLDER}/head.c", f"{FOLDER}/shares.c"],
    depends=[f"{FOLDER}/head.h", f"{FOLDER}/run.inc", f"{FOLDER}/shares.h"],
    libraries=[] if sys.platform == "win32" else ["m"],
    extra_compile_args=FLAGS + WARNINGS,
    optional=True,
)
commands: dict[str, Any] = {"build_ext": Build, "bdist_wheel": Wheel}
setup(ext_modules=[library], cmdclass=commands)
