"""What a phone runs, without a phone: Android's own libraries of ONNX Runtime, the code of the APK, arm64 processors.

Libraries are made loadable on Linux by ``tools/desktop_runtime.py``, the APK's code is translated back by Debian's
enjarify, and QEMU emulates the processors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import build_apk
import build_native
import desktop_runtime
import emulate
import pytest
from catalog import DemoError, android_runtime, maven, versions
from golden import FEATURE_TOLERANCE, compare_golden, write_golden
from junit import compile_suite

from refocus.edge.bundle.load import load_bundle
from refocus.edge.recognize.check import check
from tests.edge.runtimes.native_builds import DRIVER, build
from tests.edge.runtimes.native_reference import furthest

pytestmark = pytest.mark.slow
# Of ONNX Runtime's own Java: classes with lambdas, which enjarify cannot translate (see tools/audit_apk.py), and an
# interface with a static method, which the class files that it writes cannot have.
UNTRANSLATED = {
    f"ai/onnxruntime/{name}.class"
    for name in ("OnnxValue", "TensorInfo", "platform/Fp16Conversions", "providers/OrtCUDAProviderOptions",
                 "providers/StringConfigProviderOptions")
}  # fmt: skip


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    return need(compile_suite, tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """Android's libraries for x86_64, made loadable here."""
    archive = need(android_runtime, versions())
    return need(desktop_runtime.prepare, archive, "x86_64", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def arm64(tmp_path_factory):
    """Android's libraries for arm64, made loadable on an emulated processor."""
    if shutil.which(emulate.QEMU) is None:
        pytest.skip(f"{emulate.QEMU} is missing; Debian: apt install qemu-user-static")
    return need(emulate.build, tmp_path_factory.mktemp("arm64"))


@pytest.fixture(scope="session")
def few(affected, golden, tmp_path_factory):
    """Golden vectors of eight photos, a JPEG among them: ten decisions."""
    folder = tmp_path_factory.mktemp("few") / "golden"
    photos = sorted((golden / "golden" / "photos").iterdir())[::6][:8]
    assert {photo.suffix for photo in photos} == {".png", ".jpg"}
    write_golden(affected, folder, [photo.read_bytes() for photo in photos])
    return folder


@pytest.fixture(scope="session")
def entries(suite, golden):
    """The session entries of the app, as the code that opens its sessions sets them."""
    said = passed(suite.run(golden, tests="SelfTestTest"))
    return dict(re.findall(r"session entry (\S+?)=(\S+)$", said, re.MULTILINE))


def need(make, *arguments):
    """Calls what needs tools or archives; skips where they are missing."""
    try:
        return make(*arguments)
    except DemoError as error:
        pytest.skip(str(error))


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^OK \(\d+ tests?\)", done.stdout, re.MULTILINE)
    return done.stdout


def on_androids_library(suite, golden, native, **more):
    options = f"-Donnxruntime.native.path={native}", f"-Drefocus.native={native}", "-Xverify:all"
    said = passed(suite.run(golden, *options, folder=str(native), **more))
    assert re.search(r"golden golden\S* iciia_t: 58 decisions as in Python", said)


def test_the_suite_passes_on_androids_own_library(suite, golden, native):
    on_androids_library(suite, golden, native)


def test_the_native_head_of_an_apk_decides_as_python_did(suite, native_golden, native, tmp_path):
    """The very file for x86_64, behind Android's own ONNX Runtime."""
    for tool in ("clang", "ld.lld"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing; Debian: apt install clang lld")
    library = build_native.compile_for_android("x86_64", tmp_path / build_native.NAME)
    options = f"-Donnxruntime.native.path={native}", f"-Drefocus.head={library}", "-Xcheck:jni"
    tests = "GoldenTest NativeHeadTest VectorsTest"
    said = passed(suite.run(native_golden, *options, folder=str(native), tests=tests))
    assert f"golden {native_golden.name} iciia_t/native:fp32: 58 decisions as in Python" in said
    assert "the native head runs on" in said
    assert "class shares as in Python" in said
    assert "WARNING in native method" not in said


def test_the_native_head_of_an_apk_answers_on_arm64_as_the_reference(tmp_path):
    """The very file for arm64, called without Java."""
    compiler = desktop_runtime.COMPILERS["arm64-v8a"]
    for tool in ("clang", "ld.lld", "javac", compiler, emulate.QEMU):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing; Debian: apt install clang lld gcc-aarch64-linux-gnu qemu-user-static")
    library = build_native.compile_for_android("arm64-v8a", tmp_path / build_native.NAME)
    (tmp_path / "nothing.c").write_text("")
    build(compiler, tmp_path / "libc.so", ["-shared", "-nostdlib", "-Wl,-soname,libc.so"], [tmp_path / "nothing.c"])
    driver = build(compiler, tmp_path / "driver", ["-O2", "-Wl,--allow-shlib-undefined"], [DRIVER, library])
    system = [emulate.QEMU, "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={tmp_path}"]
    assert furthest([*system, driver], 100) < 5e-5


def test_the_suite_passes_on_the_code_of_the_apk(suite, golden, native, tmp_path):
    """Dexed, and translated back; with Android's own library."""
    missing = [tool for tool in ("aapt2", "apksigner", "enjarify") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing; Debian: apt install aapt apksigner enjarify android-framework-res")
    apk = need(build_apk.build, tmp_path / "a.apk", None, None, True, tmp_path / "key")
    with zipfile.ZipFile(apk) as package:
        package.extract("classes.dex", tmp_path)
    translated = translate(tmp_path / "classes.dex", tmp_path / "translated")
    wanted = {file.relative_to(suite.classes) for file in suite.classes.rglob("*.class")}
    assert not [file for file in wanted if not (translated / file).is_file()]
    on_androids_library(suite, golden, native, classes=translated)


def translate(dex: Path, out: Path) -> Path:
    """Dexed code as classes."""
    there = {**os.environ, "PATH": f"/usr/bin{os.pathsep}{os.environ['PATH']}"}  # Debian's Python has the module
    jar = out.with_suffix(".jar")
    command = ["enjarify", "-f", "-o", str(jar), str(dex)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=there)
    assert "classes translated successfully" in done.stdout + done.stderr, done.stdout + done.stderr
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(out, [name for name in archive.namelist() if name not in UNTRANSLATED])
    with zipfile.ZipFile(maven("com.microsoft.onnxruntime", "onnxruntime", versions()["onnxruntime"])) as archive:
        of_the_runtime = {name for name in archive.namelist() if name.endswith(".class")}
    assert {name for name in of_the_runtime if not (out / name).is_file()} == UNTRANSLATED
    return out


@pytest.mark.parametrize("processor", [name for name in emulate.PROCESSORS if name != "max"])
def test_an_arm64_processor_decides_as_python_did(affected, arm64, few, entries, processor):
    found = compared(affected, few, emulate.Machine(arm64, processor, entries))
    assert (found.steps, found.decisions) == (10, 0)
    assert found.features <= FEATURE_TOLERANCE


def test_an_arm64_processor_with_sme_decides_as_python_did(affected, arm64, few, entries):
    """This is where ONNX Runtime 1.26 is wrong if it is not told otherwise."""
    found = compared(affected, few, emulate.Machine(arm64, "max", entries))
    assert (found.steps, found.decisions) == (10, 0)
    assert found.features <= FEATURE_TOLERANCE


def test_without_the_apps_session_entry_sme_is_wrong_and_the_self_test_says_so(affected, arm64, few, entries):
    """The control of the tests above: they can fail. Delete it with the entry once the app has ONNX Runtime 1.28."""
    assert entries
    machine = emulate.Machine(arm64, "max", {})
    found = compared(affected, few, machine)
    assert found.logits > 1
    assert found.features > 1000 * FEATURE_TOLERANCE
    with emulate.running_on(machine):
        [row] = check(affected)
    assert row.failures


def compared(bundle, golden, machine):
    with emulate.running_on(machine):
        return compare_golden(load_bundle(bundle.folder), golden)
