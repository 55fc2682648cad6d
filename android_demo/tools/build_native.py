"""The native head as libraries for Android, without the NDK: ``python android_demo/tools/build_native.py OUT``.

Writes ``OUT/arm64-v8a/librefocus_native.so`` and ``OUT/x86_64/librefocus_native.so``, from the C source of the Python
package and the JNI functions of ``recognizer/src/main/c``. Needs clang, lld and a JDK (``jni.h``). The few functions
of the C library that are called are declared here, and resolved by Android's libc.so.
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
SOURCES = (ROOT / "android_demo" / "recognizer" / "src" / "main" / "c" / "native_head_jni.c", HEAD / "head.c")
FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Werror")
TRIPLES = {"arm64-v8a": "aarch64-linux-android26", "x86_64": "x86_64-linux-android26"}
PAGE = 16384  # bytes; newer phones refuse libraries of smaller segments
# What jni.h and the source include, for a machine without Android's headers.
HEADERS = {
    "stdio.h": "",
    "stdlib.h": "#include <stddef.h>\nvoid *calloc(size_t, size_t);\nvoid free(void *);\n",
}
CALLED = ("calloc", "free", "memset", "memcpy", "memmove")  # of the C library: every Android has them
JAVA = ROOT / "android_demo" / "recognizer" / "src" / "main" / "java" / "refocus" / "recognizer" / "NativeHead.java"


def jni_functions() -> set[str]:
    """Names of the functions that the Java side declares as native."""
    declared = re.findall(r"\bnative [\w\[\]]+ (\w+)\(", JAVA.read_text(encoding="utf-8"))
    return {f"Java_refocus_recognizer_NativeHead_{name}" for name in declared}


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
    _run([compiler, *flags, *map(str, SOURCES), "-o", str(out)])
    return out


def compile_for_android(abi: str, out: Path) -> Path:
    """The library for one of ``TRIPLES``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, text in HEADERS.items():
            (place / name).write_text(text)
        (place / "libc.c").write_text("".join(f"void {called}(void) {{}}\n" for called in CALLED))
        clang = ["clang", f"--target={TRIPLES[abi]}", "-fuse-ld=lld", "-nostdlib", "-shared", "-fPIC", "-fno-builtin"]
        _run([*clang, "-Wl,-soname,libc.so", str(place / "libc.c"), "-o", str(place / "libc.so")])
        link = [f"-Wl,-z,max-page-size={PAGE}", f"-Wl,-soname,{NAME}", "-Wl,-z,defs", "-Wl,-s", f"-L{place}", "-lc"]
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
