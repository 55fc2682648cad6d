"""Shared pieces: golden vectors of the tiny bundle, and Maven where it can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "android_demo"
sys.path.insert(0, str(DEMO / "tools"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skipped test counts as a failure where ``REFOCUS_CI`` is set: there, all that is needed is installed before."""
    report = yield
    if report.skipped and os.environ.get("REFOCUS_CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which REFOCUS_CI forbids: {call.excinfo.value}"
    return report


@pytest.fixture(scope="session")
def golden(bundle, tmp_path_factory):
    """A folder with ``bundle/``, prepared for the app, and the ``golden/`` vectors that it wrote."""
    from golden import write_golden
    from prepare_bundle import prepare

    from refocus.edge.bundle.load import load_bundle

    home = tmp_path_factory.mktemp("golden")
    names = home / "names.txt"
    names.write_text("".join(f"de {label}\n" for label in bundle.manifest.heads[0].labels), encoding="utf-8")
    prepare(bundle.folder, home / "bundle", {"de": names})
    write_golden(load_bundle(home / "bundle"), home / "golden")
    return home


@pytest.fixture(scope="session")
def affected(refocus, stream, tmp_path_factory):
    """A bundle of the demo's network, which has the convolutions that are wrong with SME: grouped ones with an
    activation. Its weights are random."""
    from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE
    from refocus.edge.bundle.load import load_bundle

    folder = tmp_path_factory.mktemp("affected")
    (folder / "photos").mkdir()
    for number, content in enumerate(stream[:24]):
        (folder / "photos" / f"{number:02d}.png").write_bytes(content)
    asked = [f"timm:{GLYPH_BACKBONE}", "--side", 32, "--photos", folder / "photos", "--to", "onnx:fp32"]
    done = refocus("export", *asked, "--out", folder / "bundle")
    assert done.returncode == 0, done.stderr
    return load_bundle(folder / "bundle")


OTHER_VERSION = """
#include <jni.h>
JNIEXPORT jint JNICALL Java_refocus_recognizer_NativeHead_version(JNIEnv *env, jclass owner) {
    (void)env, (void)owner;
    return 9;
}
"""


@pytest.fixture(scope="session")
def native_golden(tiny_run, tmp_path_factory):
    """As ``golden``, of a bundle that has the head for the native runtime too, whose answers these are."""
    from golden import write_golden

    from refocus.export.bundle.write import Export, export_bundle
    from refocus.export.parity.photos import read_streams
    from refocus.export.program.checkpoint import load_checkpoint

    home = tmp_path_factory.mktemp("native")
    head, streams = load_checkpoint(tiny_run.head_path(0, "iciia_t")), read_streams(tiny_run.parity_photos())
    settings = Export(["onnx:fp32", "native:fp32"])
    bundle = export_bundle([head], home / "bundle", settings, streams)
    write_golden(bundle, home / "golden", head_target="native:fp32")
    return home


@pytest.fixture(scope="session")
def jni_library(tmp_path_factory):
    """The native head for this machine's Java; beside it ``other_version.so``, which says that it is of version 9."""
    import build_native

    for tool in ("gcc", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; the native head for a JVM needs gcc and a JDK")
    folder = tmp_path_factory.mktemp("jni")
    (folder / "other.c").write_text(OTHER_VERSION)
    command = ["gcc", "-shared", "-fPIC", *build_native.jni_headers(), str(folder / "other.c"), "-o"]
    subprocess.run([*command, str(folder / "other_version.so")], check=True)
    return build_native.compile_for_desktop(folder / build_native.NAME)


def skip_without_central(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode and ("Could not transfer artifact" in done.stdout or "Unknown host" in done.stdout):
        pytest.skip("Maven Central cannot be reached, and its artifacts are not here yet")


@pytest.fixture(scope="session")
def maven():
    """Runs Maven's tests; skips where there is no JDK, no Maven, or no way to Maven Central."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; the JVM suite needs a JDK from 17 on and Maven")

    def run(*homes: Path, tests: str = "*Test", library: Path | None = None) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as scratch:  # for native libraries, which the JVM unpacks and leaves
            command = ["mvn", "-B", "-f", str(DEMO / "pom.xml"), "test", f"-Drefocus.golden={','.join(map(str, homes))}",
                       f"-Drefocus.tmp={scratch}", f"-Dtest={tests}", "-Dsurefire.failIfNoSpecifiedTests=false"]  # fmt: skip
            command += [f"-Drefocus.head={library}"] if library else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        skip_without_central(done)
        return done

    return run


@pytest.fixture
def screens(maven, tmp_path, jni_library):
    """Runs the app under Robolectric; skips as ``maven`` does."""
    if shutil.which("aapt2") is None:
        pytest.skip("aapt2 links the app's resources; Debian: apt install aapt android-framework-res")
    import screens
    from catalog import DemoError

    def run(home: Path, **more) -> subprocess.CompletedProcess[str]:
        try:
            done = screens.run(home, tmp_path / "out", library=jni_library, **more)
        except DemoError as error:
            if "Maven cannot get" not in str(error):
                raise
            pytest.skip(str(error))
        skip_without_central(done)
        return done

    return run
