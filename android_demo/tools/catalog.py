"""The versions of gradle/libs.versions.toml, and the files of Maven that have them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1]
_REPOSITORY = Path.home() / ".m2" / "repository"
_CACHE = Path.home() / ".cache" / "refocus"
# ONNX Runtime's Android archive of the catalogue's version inside an npm package (MIT, a plugin for Unity): not from
# the runtime's own authors, so nothing is taken but these very bytes.
_NPM = "com.github.asus4.onnxruntime"
_NPM_FILE = "package/Plugins/Android/onnxruntime.aar"
_NPM_SHA256 = "09c0780ae8d734ef2774bdf498b624729a855e6f9a8e488a0e7398a4e7396032"
_LINE = re.compile(r'^(\w+)\s*=\s*"([^"]+)"')


class DemoError(Exception):
    """Something that a person can act on: printed as one line."""


def versions() -> dict[str, str]:
    """The table ``[versions]``; read by hand, so that Python 3.10 can."""
    text = (DEMO / "gradle" / "libs.versions.toml").read_text(encoding="utf-8")
    table = text.split("[versions]", 1)[1].split("\n[", 1)[0]
    return {found[1]: found[2] for line in table.splitlines() if (found := _LINE.match(line))}


def maven(group: str, name: str, version: str, kind: str = "jar") -> Path:
    """One file of Maven Central, by way of the local repository.

    Raises:
        DemoError: Maven is missing, or cannot get the file.
    """
    path = _REPOSITORY.joinpath(*group.split("."), name, version, f"{name}-{version}.{kind}")
    if not path.is_file():
        command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={group}:{name}:{version}:{kind}",
                   "-Dtransitive=false"]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=1800)
        except FileNotFoundError:
            raise DemoError("mvn is missing; install Maven (Debian: apt install maven)") from None
        except subprocess.CalledProcessError:
            raise DemoError(f"Maven cannot get {group}:{name}:{version}:{kind}") from None
    return path


def android_runtime(wanted: dict[str, str]) -> Path:
    """ONNX Runtime's Android archive: Maven Central's or, where its mirror has none, npm's, checked by its SHA-256.

    Raises:
        DemoError: neither has it.
    """
    try:
        return maven("com.microsoft.onnxruntime", "onnxruntime-android", wanted["onnxruntime"], "aar")
    except DemoError as error:
        try:
            return npm_runtime(f"{_NPM}@{wanted['onnxruntimeNpm']}")
        except DemoError as other:
            raise DemoError(f"{error}, and {other}") from None


def npm_runtime(package: str) -> Path:
    """The archive inside an npm package, as "name@version" or a folder, if it has the bytes that were looked at."""
    kept = _CACHE / f"{_NPM_SHA256}.aar"
    if kept.is_file() and _sha256(kept) == _NPM_SHA256:
        return kept
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", "--pack-destination", scratch, package]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=1800)
            [packed] = Path(scratch).glob("*.tgz")
            with tarfile.open(packed) as archive:
                stream = archive.extractfile(_NPM_FILE)
                if stream is None:
                    raise DemoError(f"{package} has no {_NPM_FILE}")
                content = stream.read()
        except FileNotFoundError:
            raise DemoError("npm, which has it too, is missing") from None
        except (subprocess.SubprocessError, ValueError, KeyError, tarfile.TarError):
            raise DemoError(f"npm cannot get {package}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != _NPM_SHA256:
        raise DemoError(f"{package} holds an archive of SHA-256 {found}; expected {_NPM_SHA256}: not used")
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=_CACHE, delete=False) as new:
        new.write(content)
    return Path(new.name).replace(kept)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
