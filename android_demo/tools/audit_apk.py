"""Looks into an APK and fails on anything that the demo promises not to have, or has not."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_apk import ABIS, ALIGN, ALIGN_ELF
from build_native import CALLED, NAME, jni_functions
from catalog import DemoError, maven, versions
from desktop_runtime import symbols
from dexfile import Dex, Platform

MAX_BYTES = 40_000_000
MAX_STORED_BYTES = 45_000_000  # with libraries stored: more in the file, less on the device, which unpacks none
TELEMETRY = (b"ORT_DISABLE_TELEMETRY", b"events.data.microsoft.com", b"TelemetryInitializer", b"vortex.data.microsoft")
LIBRARIES = ("libonnxruntime.so", "libonnxruntime4j_jni.so")
MACHINES = {"arm64-v8a": 183, "x86_64": 62}  # of ELF
SCHEMES = {0x7109871A: "v2", 0xF05368C0: "v3"}
# Newer than minSdk, and called behind a check of SDK_INT: class, name.
GUARDED = {
    ("Landroid/view/View;", "setAccessibilityHeading"),  # 28
    ("Landroid/widget/TextView;", "setAccessibilityHeading"),  # 28
    ("Landroid/os/PowerManager;", "getCurrentThermalStatus"),  # 29
    ("Landroid/graphics/Bitmap;", "setColorSpace"),  # 29
}
# Lambdas of the runtime's own Java, in methods that the app never calls. Devices refuse them when they are reached; D8
# rewrites them, dx does not.
NEVER_CALLED = {
    ("Lai/onnxruntime/TensorInfo;", "toString"),
    ("Lai/onnxruntime/providers/StringConfigProviderOptions;", "getOptionsString"),
    ("Lai/onnxruntime/providers/OrtCUDAProviderOptions;", "<init>"),
    ("Lai/onnxruntime/providers/OrtTensorRTProviderOptions;", "<init>"),
}
# Versions of ONNX Runtime, first and first right again, whose arm64 library computes wrong features on processors with
# SME, and the session entry without which an app must not have them; 1.24 does not know it.
WRONG_WITH_SME, LEAVE_KLEIDIAI_OUT, FIRST_WITH_ENTRY = ((1, 24), (1, 28)), b"mlas.disable_kleidiai", (1, 25)
# What is below java. is bounded by compiling with --release 8, all of which Android 8 has.
_PLATFORM = ("Landroid/", "Ldalvik/")
_METHOD = re.compile(r": \(in (L[^)]+;)\)\n\s+name\s+: '([^']+)'")


def audit(apk: Path, minimum: Platform | None, abis: Sequence[str]) -> list[str]:
    """Everything that is wrong, one line each; empty where nothing is.

    Args:
        minimum: the classes of minSdk; None leaves the check of framework references out.
        abis: those whose native libraries were asked for; none of an APK without the runtime.
    """
    content = apk.read_bytes()
    tree = _said("aapt2", "dump", "xmltree", "--file", "AndroidManifest.xml", str(apk))
    unpacked = re.search(r"extractNativeLibs\(0x[0-9a-f]+\)=true", tree) is not None
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        found = [
            *_manifest(apk, tree),
            *_libraries(package, abis),
            *_native_heads(package, abis),
            *_alignment(package, content, unpacked),
            *_telemetry(package),
            *_known_errors(package),
            *_bundle(package),
        ]
        dex = [Dex(package.read(name)) for name in package.namelist() if re.fullmatch(r"classes\d*\.dex", name)]
    found += [] if dex else ["no classes.dex"]
    for each in dex:
        found += _lambdas(apk) if each.has_call_sites() else []
        found += _references(each, minimum) if minimum is not None else []
    found += [f"not signed with scheme {scheme}" for scheme in SCHEMES.values() if scheme not in schemes(content)]
    allowed = MAX_BYTES if unpacked else MAX_STORED_BYTES
    found += [f"{len(content)} bytes, at most {allowed} are allowed"] if len(content) > allowed else []
    return found


def _manifest(apk: Path, tree: str) -> Iterator[str]:
    """Permissions, providers, services and SDK levels, as aapt2 reads them."""
    if "E: uses-permission" in tree:
        yield "asks for permissions: " + ", ".join(re.findall(r'android\.permission\.\w+(?=")', tree))
    if "E: provider" in tree:
        yield "has a content provider, which may run before the app"
    badging, wanted = _said("aapt2", "dump", "badging", str(apk)), versions()
    for name, key in (("sdkVersion", "minSdk"), ("targetSdkVersion", "targetSdk")):
        if f"{name}:'{wanted[key]}'" not in badging:
            yield f"{name} is not {wanted[key]}"
    if not re.search(r"allowBackup\(0x[0-9a-f]+\)=false", tree):
        yield "allowBackup is not false"


def _libraries(package: zipfile.ZipFile, abis: Sequence[str]) -> Iterator[str]:
    names = [name for name in package.namelist() if name.startswith("lib/")]
    wanted = [f"lib/{abi}/{library}" for abi in abis for library in LIBRARIES]
    yield from (f"{name} is missing" for name in wanted if name not in names)
    yield from (f"{name} is for an ABI that was not asked for" for name in names if name.split("/")[1] not in abis)
    for name in names:
        aligned = elf_alignment(package.read(name))
        if aligned < ALIGN_ELF:
            yield f"{name}: segments aligned to {aligned} bytes; devices with pages of {ALIGN_ELF} cannot load it"


def _native_heads(package: zipfile.ZipFile, abis: Sequence[str]) -> Iterator[str]:
    """The native head is there for every ABI or for none; it has what the Java side declares, and needs little."""
    there = [abi for abi in abis if f"lib/{abi}/{NAME}" in package.namelist()]
    yield from (f"lib/{abi}/{NAME} is missing; it is there for {', '.join(there)}" for abi in abis
                if there and abi not in there)  # fmt: skip
    for abi in there:
        name = f"lib/{abi}/{NAME}"
        library = package.read(name)
        try:
            defined, taken = symbols(library)
        except DemoError as error:
            yield f"{name}: {error}"
            continue
        if struct.unpack_from("<H", library, 18)[0] != MACHINES[abi]:
            yield f"{name} is for another processor"
        if missing := sorted(jni_functions() - defined):
            yield f"{name} lacks {', '.join(missing)}"
        called = [each for names in CALLED.values() for each in names]
        if foreign := sorted(taken - set(called)):
            yield f"{name} needs {', '.join(foreign)}, expected nothing but {', '.join(called)}"


def elf_alignment(library: bytes) -> int:
    """The smallest alignment of the segments that are loaded, in bytes; 0 where it is no 64-bit ELF file."""
    if library[:5] != b"\x7fELF\2":
        return 0
    (table,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<2H", library, 54)
    headers = [struct.unpack_from("<2I6Q", library, table + size * i) for i in range(count)]
    return min((header[7] for header in headers if header[0] == 1), default=0)


def _alignment(package: zipfile.ZipFile, content: bytes, unpacked: bool) -> Iterator[str]:
    """Stored files off their boundary, and libraries that are compressed although nobody unpacks them."""
    for entry in package.infolist():
        name, extra = struct.unpack_from("<2H", content, entry.header_offset + 26)
        start = entry.header_offset + 30 + name + extra
        library = entry.filename.endswith(".so")
        if library and entry.compress_type != zipfile.ZIP_STORED and not unpacked:
            yield f"{entry.filename} is compressed, so it cannot be loaded from where it is"
        if entry.compress_type == zipfile.ZIP_STORED and start % (ALIGN_ELF if library else ALIGN):
            yield f"{entry.filename} begins at {start}, expected a multiple of {ALIGN_ELF if library else ALIGN}"
        if entry.filename == "resources.arsc" and entry.compress_type != zipfile.ZIP_STORED:
            yield "resources.arsc is compressed, which Android refuses from API 30 on"


def _telemetry(package: zipfile.ZipFile) -> Iterator[str]:
    for name in package.namelist():
        if name.endswith((".so", ".dex")):
            content = package.read(name)
            yield from (f"{name} holds '{word.decode()}': it can report to a server" for word in TELEMETRY
                        if word in content)  # fmt: skip


def _known_errors(package: zipfile.ZipFile) -> Iterator[str]:
    """Libraries of a version that is known to compute wrong features, in an app that does not step around it."""
    name, (first, fixed) = "lib/arm64-v8a/libonnxruntime.so", WRONG_WITH_SME
    found = re.search(rb"\0VERS_(\d+)\.(\d+)[\d.]*\0", package.read(name)) if name in package.namelist() else None
    version = tuple(map(int, found.groups())) if found else fixed
    code = b"".join(package.read(each) for each in package.namelist() if each.endswith(".dex"))
    if first <= version < fixed and (version < FIRST_WITH_ENTRY or LEAVE_KLEIDIAI_OUT not in code):
        yield (
            f"{name} is of ONNX Runtime {version[0]}.{version[1]}, which computes wrong features on processors with"
            f" SME; set the session entry {LEAVE_KLEIDIAI_OUT.decode()}, known from 1.25 on, or take 1.28"
        )


def _bundle(package: zipfile.ZipFile) -> Iterator[str]:
    """The model inside is the one that its manifest names."""
    if "assets/bundle.zip" not in package.namelist():
        return
    with zipfile.ZipFile(io.BytesIO(package.read("assets/bundle.zip"))) as bundle:
        for artifact in json.loads(bundle.read("manifest.json"))["artifacts"]:
            if artifact["file"] not in bundle.namelist():
                continue  # a folder; the app compares its files
            if hashlib.sha256(bundle.read(artifact["file"])).hexdigest() != artifact["sha256"]:
                yield f"{artifact['file']} is not what the manifest names"


def _lambdas(apk: Path) -> Iterator[str]:
    """Methods that hold an invoke-custom, which is what dx makes of a lambda."""
    for method in _said("dexdump", "-d", str(apk)).split("\n    #")[1:]:
        named = _METHOD.search(method)
        if named and "invoke-custom" in method and named.groups() not in NEVER_CALLED:
            yield f"invoke-custom in {named[1]}{named[2]}: a lambda was dexed, which devices refuse"


def _references(dex: Dex, minimum: Platform) -> Iterator[str]:
    """What the code refers to of the platform and minSdk does not have, unless it is guarded."""
    own = dex.defined()
    for kind in dex.types():
        if kind.startswith(_PLATFORM) and kind not in own and not minimum.has_class(kind):
            yield f"{kind} is not in the lowest Android that is supported"
    for member in dex.members():
        foreign = member[0].startswith(_PLATFORM) and member[0] not in own and minimum.has_class(member[0])
        if foreign and not minimum.has(member) and member[:2] not in GUARDED:
            yield f"{member[0]}{member[1]}{member[2]} is not in the lowest Android that is supported"


def schemes(apk: bytes) -> set[str]:
    """Names of the signature schemes in the signing block; whether they verify, apksigner says."""
    end = apk.rfind(b"PK\5\6")
    (central,) = struct.unpack_from("<I", apk, end + 16)
    if apk[central - 16 : central] != b"APK Sig Block 42":
        return set()
    (size,) = struct.unpack_from("<Q", apk, central - 24)
    at, found = central - size, set()
    while at < central - 24:
        length, kind = struct.unpack_from("<QI", apk, at)
        found.add(SCHEMES.get(kind, ""))
        at += 8 + length
    return found - {""}


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except FileNotFoundError:
        raise DemoError(f"{command[0]} is missing; Debian: apt install aapt apksigner dexdump") from None
    if done.returncode:
        raise DemoError(f"{command[0]} refuses {command[-1]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("apk", type=Path)
    parser.add_argument("--without-runtime", action="store_true", help="built so")
    parser.add_argument("--without-references", action="store_true", help="leave framework references unchecked")
    parser.add_argument("--abi", choices=ABIS, help="built so")
    given = parser.parse_args(arguments)
    abis = () if given.without_runtime else (given.abi,) if given.abi else ABIS
    try:
        minimum = None
        if not given.without_references:
            minimum = Platform(maven("org.robolectric", "android-all", versions()["androidAllMinSdk"]))
        _said("apksigner", "verify", "--verbose", str(given.apk))
        wrong = audit(given.apk, minimum, abis)
    except (DemoError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"audit_apk: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in wrong) or f"{given.apk}: nothing wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
