"""The recogniser's JUnit suite without Maven's build, so that its classes and its native library can be replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DEMO, DemoError, maven, versions

_SOURCES = DEMO / "recognizer" / "src"
HEAP = ("-Xmx512m", "-XX:+UseSerialGC")  # as pom.xml: a photo of 100 megapixels must not fit


@dataclass(frozen=True)
class Suite:
    """The compiled suite.

    Attributes:
        classes, tests: folders of the recogniser's classes and of its tests.
        jars: JUnit and ONNX Runtime.
    """

    classes: Path
    tests: Path
    jars: tuple[Path, ...] = field(default=())

    def run(self, home: Path, *options: str, classes: Path | None = None, tests: str = "", folder: str = ""
            ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs the suite against golden vectors.

        Args:
            home: folder with ``bundle/`` and ``golden/``.
            options: of the JVM.
            classes: to be run in place of the recogniser's and ONNX Runtime's own; what is missing there is theirs.
            tests: names of test classes, separated by blanks; default: all.
            folder: where the JVM finds libraries that its own ask for.
        """
        found = [classes, self.tests, self.classes, *self.jars]
        path = os.pathsep.join(str(each) for each in found if each is not None)
        names = tests.split() or sorted(file.stem for file in self.tests.rglob("*Test.class"))
        environment = {**os.environ, "LD_LIBRARY_PATH": folder} if folder else None
        with tempfile.TemporaryDirectory() as scratch:
            command = ["java", *HEAP, f"-Djava.io.tmpdir={scratch}", f"-Drefocus.golden={home}", *options, "-cp", path,
                       "org.junit.runner.JUnitCore", *(f"refocus.recognizer.{name}" for name in names)]  # fmt: skip
            where = _SOURCES.parent  # as Maven does: the suite finds the vectors of formats from there
            return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=where)


def compile_suite(folder: Path) -> Suite:
    """Compiles the recogniser and its tests.

    Raises:
        DemoError: no JDK, or Maven cannot get JUnit or ONNX Runtime.
    """
    if shutil.which("javac") is None:
        raise DemoError("javac is missing; Debian: apt install default-jdk-headless")
    wanted = versions()
    jars = (
        maven("junit", "junit", wanted["junit"]),
        maven("org.hamcrest", "hamcrest-core", "1.3"),
        maven("com.microsoft.onnxruntime", "onnxruntime", wanted["onnxruntime"]),
    )
    suite = Suite(folder / "classes", folder / "tests", jars)
    for kind, out in (("main", suite.classes), ("test", suite.tests)):
        path = os.pathsep.join(map(str, (suite.classes, *jars)))
        sources = map(str, sorted((_SOURCES / kind).rglob("*.java")))
        command = ["javac", "-nowarn", "-Xlint:-options", "--release", "8", "-encoding", "UTF-8", "-cp", path,
                   "-d", str(out), *sources]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    return suite
