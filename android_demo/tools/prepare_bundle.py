"""Adds names of a bundle's labels in other languages, which the app shows.

They go into ``training`` of each head in the manifest (docs/formats/bundle.md): a part that other readers do not look
into. Files and programs stay as they are; a signature is made anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DemoError


def prepare(bundle: Path, out: Path, names: Mapping[str, Path]) -> list[str]:
    """Write a copy of a bundle with names of its labels.

    Args:
        names: by language, as "de", a file with a name on each line, in the order of the labels.

    Returns:
        what was added, a line each.

    Raises:
        DemoError: what is given does not fit the bundle.
    """
    if out.exists():
        raise DemoError(f"--out {out} exists already; choose another folder")
    path = bundle / "manifest.json"
    if not path.is_file():
        raise DemoError(f"{bundle}: no manifest.json in it; expected an exported bundle")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    said = []
    for head in manifest["heads"]:
        for language, file in names.items():
            training = head.setdefault("training", {})
            training.setdefault("label_names", {})[language] = read_names(file, len(head["labels"]))
            said.append(f"{head['name']}: {len(head['labels'])} names for {language}")
    shutil.copytree(bundle, out, ignore=shutil.ignore_patterns("*.sig", "signature*"))
    (out / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return said


def read_names(file: Path, labels: int) -> list[str]:
    """Read one name a line.

    Raises:
        DemoError: not one for every label.
    """
    try:
        found = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DemoError(f"--names {file} cannot be read ({error}); give a text file in UTF-8") from None
    if len(found) != labels or not all(found):
        raise DemoError(f"--names {file} has {len(found)} names, the model has {labels} labels; one on each line")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path, help="folder of the prepared bundle")
    parser.add_argument("--names", action="append", required=True, metavar="LANGUAGE=FILE", help="as de=names.txt")
    given = parser.parse_args(arguments)
    try:
        names = dict(name.split("=", 1) for name in given.names)
        said = prepare(given.bundle, given.out, {language: Path(file) for language, file in names.items()})
    except ValueError:
        sys.stderr.write(f"prepare_bundle: --names {given.names}: expected LANGUAGE=FILE, as de=names.txt\n")
        return 1
    except DemoError as error:
        sys.stderr.write(f"prepare_bundle: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
