"""Builds the demo APK without Gradle: link, compile, dex, pack, sign. Two builds with one key are identical.

Needs a JDK from 17 on, Maven, and of Debian aapt, apksigner and android-framework-res. Traps that this file steps
around are told in docs/android.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_native import NAME, compile_for_android
from catalog import DEMO, DemoError, android_runtime, maven, versions

PACKAGE, VERSION_CODE, VERSION_NAME = "refocus.app", "1", "0.1.0"
ABIS = ("arm64-v8a", "x86_64")
FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")  # the resource table of API 29
NEWER_ATTRIBUTES = {
    "dataExtractionRules": ("0x0101063e", "reference"),
    "enableOnBackInvokedCallback": ("0x0101066c", "boolean"),
}
ALIGN_ELF, ALIGN = 16384, 4
_ANDROID = "http://schemas.android.com/apk/res/android"
_TOOLS = "http://schemas.android.com/tools"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ALIGNMENT_FIELD = 0xD935  # what apksigner reads before it aligns a stored file anew


def build(out: Path, bundle: Path | None, runtime: Path | None, without_runtime: bool, key: Path,
          abis: Sequence[str] = ABIS) -> Path:  # fmt: skip
    """Builds and signs.

    Libraries of one ABI are stored, and devices load them from where they are. Those of several are compressed, and
    devices unpack the ones they can use: stored, two ABIs alone are above the size that is allowed.

    Args:
        out: the APK.
        bundle: an exported bundle that travels as an asset; None: the app starts without a model.
        runtime: ONNX Runtime's Android archive (AAR), of the catalogue's version; None: Maven's or npm's.
        without_runtime: builds an app that says that it has no runtime; for machines that cannot get one.
        key: keystore; made if it is missing.
        abis: of :data:`ABIS`, those whose libraries travel inside.

    Raises:
        DemoError: a tool or file is missing, or refuses.
    """
    wanted = versions()
    for tool in ("aapt2", "javac", "java", "apksigner", "keytool"):
        if shutil.which(tool) is None:
            raise DemoError(
                f"{tool} is missing; Debian: apt install aapt apksigner android-framework-res openjdk-17-jdk"
            )
    if not FRAMEWORK.is_file():
        raise DemoError(f"{FRAMEWORK} is missing; Debian: apt install android-framework-res")
    java = maven("com.microsoft.onnxruntime", "onnxruntime", wanted["onnxruntime"])
    android = maven("org.robolectric", "android-all", wanted["androidAll"])
    dx = maven("com.jakewharton.android.repackaged", "dalvik-dx", wanted["dx"])
    libraries: dict[str, bytes] = {}
    if not without_runtime:
        libraries = _libraries(runtime or _official(wanted), abis, wanted["onnxruntime"])
        libraries |= _native_heads(abis)
    stored = len(abis) == 1
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        linked = link(work, wanted, unpacked=not stored)
        classes = _compile(work, java, android)
        dex = _dex(work, dx, classes, wanted["minSdk"])
        files = [*_linked_files(linked), ("classes.dex", dex, False)]
        files += [("assets/bundle.zip", bundle_zip(bundle), False)] if bundle is not None else []
        files += [(name, content, stored) for name, content in sorted(libraries.items())]
        unsigned = work / "unsigned.apk"
        pack(files, unsigned)
        out.parent.mkdir(parents=True, exist_ok=True)
        _sign(unsigned, out, key, wanted["minSdk"])
    return out


def _native_heads(abis: Sequence[str]) -> dict[str, bytes]:
    """The native head for some ABIs, by its name in the APK; none without clang or lld, and the stock head serves."""
    if shutil.which("clang") is None or shutil.which("ld.lld") is None:
        sys.stderr.write(
            "build_apk: without the native head, because clang or lld is missing; Debian: apt install clang lld\n"
        )
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return {
                f"lib/{abi}/{NAME}": compile_for_android(abi, Path(scratch) / abi / NAME).read_bytes() for abi in abis
            }
        except (FileNotFoundError, RuntimeError) as error:
            raise DemoError(f"the native head cannot be built: {error}") from None


def _official(wanted: dict[str, str]) -> Path:
    try:
        return android_runtime(wanted)
    except DemoError as error:
        raise DemoError(
            f"{error}; give the archive with --runtime FILE, or --without-runtime for an app that cannot recognise"
        ) from None


def _libraries(archive: Path, abis: Sequence[str], version: str) -> dict[str, bytes]:
    """The shared libraries of an AAR for some ABIs, by their name in the APK."""
    with zipfile.ZipFile(archive) as aar:
        found = {
            f"lib/{abi}/{name.rsplit('/', 1)[1]}": aar.read(name)
            for abi in abis
            for name in aar.namelist()
            if name.startswith(f"jni/{abi}/") and name.endswith(".so")
        }
    if len(found) < 2 * len(abis):
        raise DemoError(f"{archive} lacks libraries for {' or '.join(abis)}; expected the AAR of onnxruntime-android")
    for name, content in found.items():
        # The Java classes call into the library of their own version; the linker's symbol version tells which it is.
        if name.endswith("/libonnxruntime.so") and f"VERS_{version}".encode() not in content.split(b"\0"):
            told = re.search(rb"\0VERS_([\d.]+)\0", content)
            raise DemoError(
                f"{archive} is of ONNX Runtime {told[1].decode() if told else 'of no version'}; the app's classes are"
                f" of {version}: give the archive of that version, or change gradle/libs.versions.toml and pom.xml"
            )
    return found


# ---- resources


def link(work: Path, wanted: dict[str, str], unpacked: bool = False) -> Path:
    """Compiles and links resources; writes R.java below ``gen``.

    Args:
        unpacked: whether devices unpack native libraries when they install the app.
    """
    framework = _framework_extension(work)
    manifest = work / "AndroidManifest.xml"
    manifest.write_bytes(_merged_manifest((DEMO / "app/src/main/AndroidManifest.xml").read_bytes(), unpacked))
    compiled, linked = work / "res.zip", work / "linked.apk"
    run("aapt2", "compile", "--dir", DEMO / "app/src/main/res", "-o", compiled)
    run("aapt2", "link", "-o", linked, "-I", FRAMEWORK, "-I", framework, "--manifest", manifest, "--java", work / "gen",
        "--min-sdk-version", wanted["minSdk"], "--target-sdk-version", wanted["targetSdk"],
        "--version-code", VERSION_CODE, "--version-name", VERSION_NAME, "--auto-add-overlay", compiled)  # fmt: skip
    return linked


def _framework_extension(work: Path) -> Path:
    """Attributes that are newer than the framework's table, with the numbers that Android gave them."""
    values = work / "extension" / "values"
    values.mkdir(parents=True)
    lines = "".join(
        f'<attr name="{name}" format="{kind}"/><public type="attr" name="{name}" id="{number}"/>'
        for name, (number, kind) in NEWER_ATTRIBUTES.items()
    )
    (values / "attrs.xml").write_text(f"<resources>{lines}</resources>", encoding="utf-8")
    manifest = work / "extension" / "AndroidManifest.xml"
    manifest.write_text('<manifest package="android"/>', encoding="utf-8")
    compiled, linked = work / "extension.zip", work / "extension.apk"
    run("aapt2", "compile", "--dir", work / "extension", "-o", compiled)
    run("aapt2", "link", "-x", "-o", linked, "--manifest", manifest, compiled)
    return linked


def _merged_manifest(source: bytes, unpacked: bool) -> bytes:
    """What Gradle's merger would make of it: the package, how libraries are loaded, and without what
    ``tools:node="remove"`` marks.
    """
    ET.register_namespace("android", _ANDROID)
    root = ET.fromstring(source)  # noqa: S314  # our own file
    root.set("package", PACKAGE)
    for application in root.iter("application"):
        application.set(f"{{{_ANDROID}}}extractNativeLibs", str(unpacked).lower())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get(f"{{{_TOOLS}}}node") == "remove":
                parent.remove(child)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _linked_files(linked: Path) -> Iterator[tuple[str, bytes, bool]]:
    with zipfile.ZipFile(linked) as apk:
        for name in sorted(apk.namelist()):
            yield name, apk.read(name), name == "resources.arsc"  # from API 30 on it must be stored


# ---- code


def _compile(work: Path, java: Path, android: Path) -> Path:
    """All Java, and the runtime's own classes, for Java 8: what dx can read."""
    classes = work / "classes"
    classes.mkdir()
    sources = sorted(DEMO.glob("*/src/main/java/**/*.java")) + sorted((work / "gen").rglob("*.java"))
    run("javac", "-nowarn", "-Xlint:-options", "--release", "8", "-encoding", "UTF-8", "-g:none", "-proc:none",
        "-cp", f"{java}{os.pathsep}{android}", "-d", classes, *sources)  # fmt: skip
    with zipfile.ZipFile(java) as jar:
        for name in sorted(jar.namelist()):
            if name.startswith("ai/onnxruntime/") and name.endswith(".class"):
                jar.extract(name, classes)
    return classes


def _dex(work: Path, dx: Path, classes: Path, min_sdk: str) -> bytes:
    out = work / "classes.dex"
    # In the folder: dx records the names that it is given.
    run("java", "-Xmx1g", "-cp", dx, "com.android.dx.command.Main", "--dex", f"--min-sdk-version={min_sdk}",
        f"--output={out}", ".", cwd=classes)  # fmt: skip
    return out.read_bytes()


# ---- the package


def pack(files: Sequence[tuple[str, bytes, bool]], out: Path) -> None:
    """Writes a zip: (name, content, stored as it is). Stored libraries begin on 16 KiB, other stored files on 4 bytes.

    Each stored file's header says its alignment in a field that apksigner keeps to; else it would align libraries to
    4 KiB, which devices with pages of 16 KiB refuse.
    """
    with out.open("wb") as stream:
        listing = []
        for name, content, stored in files:
            path, offset = name.encode(), stream.tell()
            body = content if stored else _deflated(content)
            extra = _extra(offset + 30 + len(path), ALIGN_ELF if name.endswith(".so") else ALIGN) if stored else b""
            fields = (20, 0x0800, 0 if stored else 8, 0, _dos_date(), zlib.crc32(content), len(body), len(content),
                      len(path))  # fmt: skip
            stream.write(struct.pack("<4s5H3I2H", b"PK\3\4", *fields, len(extra)) + path + extra + body)
            listing.append(struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, *fields, 0, 0, 0, 0, 0, offset) + path)
        start, central = stream.tell(), b"".join(listing)
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(listing), len(listing), len(central), start, 0)
        stream.write(central + end)


def _extra(header_end: int, alignment: int) -> bytes:
    padding = -(header_end + 6) % alignment
    return struct.pack("<3H", _ALIGNMENT_FIELD, 2 + padding, alignment) + b"\0" * padding


def _deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def _dos_date() -> int:
    year, month, day = _EPOCH[:3]
    return (year - 1980) << 9 | month << 5 | day


def bundle_zip(bundle: Path) -> bytes:
    """Return a bundle as a zip, always of the same bytes; nothing inside is compressed twice."""
    if not (bundle / "manifest.json").is_file():
        raise DemoError(f"--bundle {bundle}: no manifest.json in it; expected an exported bundle")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "bundle.zip"
        names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())
        pack([(name, (bundle / name).read_bytes(), True) for name in names], out)
        return out.read_bytes()


def _sign(unsigned: Path, out: Path, key: Path, min_sdk: str) -> None:
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        run("keytool", "-genkeypair", "-keystore", key, "-storepass", "refocus", "-alias", "demo", "-keyalg", "RSA",
            "-keysize", "2048", "-validity", "10000", "-dname", "CN=Refocus demo")  # fmt: skip
    run("apksigner", "sign", "--ks", key, "--ks-pass", "pass:refocus", "--min-sdk-version", min_sdk,
        "--v1-signing-enabled", "false", "--v2-signing-enabled", "true", "--v3-signing-enabled", "true",
        "--v4-signing-enabled", "false", "--out", out, unsigned)  # fmt: skip


def run(*command: object, cwd: Path | None = None) -> str:
    """Runs a tool.

    Raises:
        DemoError: it failed; the message has what it said.
    """
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, timeout=1800)
    if done.returncode:
        raise DemoError(f"{command[0]} {command[1]} failed:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEMO / "build" / "refocus-demo.apk")
    parser.add_argument("--bundle", type=Path, help="exported bundle to travel inside")
    parser.add_argument("--runtime", type=Path, help="AAR of onnxruntime-android; default: Maven's or npm's")
    parser.add_argument("--without-runtime", action="store_true", help="an app that cannot recognise, to look at")
    parser.add_argument("--key", type=Path, default=DEMO / "build" / "demo.keystore", help="made if it is missing")
    parser.add_argument(
        "--abi", choices=ABIS, help="for one ABI alone, its libraries stored; default: both, compressed"
    )
    given = parser.parse_args(arguments)
    abis = (given.abi,) if given.abi else ABIS
    try:
        apk = build(given.out, given.bundle, given.runtime, given.without_runtime, given.key, abis)
    except DemoError as error:
        sys.stderr.write(f"build_apk: {error}\n")
        return 1
    sys.stdout.write(f"{apk}: {apk.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
