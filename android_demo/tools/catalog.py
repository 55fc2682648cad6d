"""The versions of gradle/libs.versions.toml, and the files of Maven that have them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1]
_REPOSITORY = Path.home() / ".m2" / "repository"
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
