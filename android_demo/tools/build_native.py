"""The native head as libraries for Android, without the NDK: ``python android_demo/tools/build_native.py OUT``.

Writes ``OUT/arm64-v8a/librefocus_native.so`` and ``OUT/x86_64/librefocus_native.so``, from the C source of the Python
package and the JNI functions of ``recognizer/src/main/c``. Needs clang, lld and a JDK (``jni.h``). The few functions
of the C library that are called are declared here, and resolved by Android's libc.so and libm.so.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

NAME = "librefocus_native.so"
ROOT = Path(__file__).parents[2]
HEAD = ROOT / "edge" / "runtimes" / "native_head"
SOURCES = (
    ROOT / "android_demo" / "recognizer" / "src" / "main" / "c" / "native_head_jni.c",
    HEAD / "head.c",
    HEAD / "shares.c",
)
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Werror")
TRIPLES = {"arm64-v8a": "aarch64-linux-android26", "x86_64": "x86_64-linux-android26"}
PAGE = 16384  # bytes; newer phones refuse libraries of smaller segments
# What jni.h and the source include, for a machine without Android's headers.
HEADERS = {
    "stdio.h": "",
    "stdlib.h": "#include <stddef.h>\nvoid *calloc(size_t, size_t);\nvoid free(void *);\n",
    "math.h": "double exp(double);\ndouble log(double);\ndouble pow(double, double);\n"
    "#define fabs __builtin_fabs\n#define isfinite __builtin_isfinite\n",
}
# Functions of Android's libraries that are called; every Android has them.
CALLED = {"c": ("calloc", "free", "memset", "memcpy", "memmove"), "m": ("exp", "log", "pow")}
JAVA = ROOT / "android_demo" / "recognizer" / "src" / "main" / "java" / "refocus" / "recognizer"
NATIVE = "NativeHead", "ClassShares"  # classes with native methods


def jni_functions() -> set[str]:
    """Names of the functions that the Java side declares as native."""
    return {
        f"Java_refocus_recognizer_{owner}_{name}"
        for owner in NATIVE
        for name in re.findall(r"\bnative [\w\[\]]+ (\w+)\(", (JAVA / f"{owner}.java").read_text(encoding="utf-8"))
    }


def jni_headers() -> list[str]:
    """Flags by which a compiler finds ``jni.h``.

    Raises:
        FileNotFoundError: there is no JDK.
    """
    javac = shutil.which("javac")
    home = Path(javac).resolve().parents[1] if javac else Path("/nowhere")
    if not (home / "include" / "jni.h").is_file():
        raise FileNotFoundError("no jni.h beside javac; install a JDK (Debian: default-jdk-headless)")
    return [f"-I{home / 'include'}", f"-I{home / 'include' / 'linux'}"]


def compile_for_desktop(out: Path, compiler: str = "gcc") -> Path:
    """The library for this machine's Java, as tests load it."""
    flags = [*FLAGS, *WARNINGS, "-shared", "-fPIC", *jni_headers(), f"-I{HEAD}"]
    _run([compiler, *flags, *map(str, SOURCES), "-lm", "-o", str(out)])
    return out


def compile_for_android(abi: str, out: Path) -> Path:
    """The library for one of ``TRIPLES``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, text in HEADERS.items():
            (place / name).write_text(text)
        clang = ["clang", f"--target={TRIPLES[abi]}", "-fuse-ld=lld", "-nostdlib", "-shared", "-fPIC", "-fno-builtin"]
        for library, called in CALLED.items():
            stub = place / f"lib{library}.c"
            stub.write_text("".join(f"void {name}(void) {{}}\n" for name in called))
            _run([*clang, f"-Wl,-soname,lib{library}.so", str(stub), "-o", str(stub.with_suffix(".so"))])
        link = [
            f"-Wl,-z,max-page-size={PAGE}",
            f"-Wl,-soname,{NAME}",
            "-Wl,-z,defs",
            "-Wl,-s",
            f"-L{place}",
            "-lc",
            "-lm",
        ]
        flags = ["-ffreestanding", *FLAGS, *WARNINGS, f"-isystem{place}", *jni_headers(), f"-I{HEAD}"]
        _run([*clang[:-1], *flags, *map(str, SOURCES), *link, "-o", str(out)])
    return out


def _run(command: Sequence[str]) -> None:
    """Raises RuntimeError: it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    for abi in TRIPLES:
        made = compile_for_android(abi, out / abi / NAME)
        sys.stdout.write(f"{made}: {made.stat().st_size / 1e3:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
