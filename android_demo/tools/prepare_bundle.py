"""Prepares a bundle for the app: the threshold of what it knows, and names of its labels in other languages.

Both go into ``training`` of each head in the manifest (docs/formats/bundle.md): a part that other readers do not look
into. Files and programs stay as they are; a signature is made anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DemoError

KEPT = 0.95  # share of the answers to photos of what a model knows that are to be given


def prepare(bundle: Path, out: Path, photos: Path | None, names: Mapping[str, Path], target: str = "") -> list[str]:
    """Writes a copy of a bundle; says what it added.

    Args:
        photos: photos of things that the model knows, one folder for each person; they must not be photos that any
            result is measured on. None: the app's default threshold.
        names: by language, as "de", a file with a name on each line, in the order of the labels.
        target: whose answers count, as ``onnxruntime:fp32``; default: the first that the bundle has.

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
        training = head.setdefault("training", {})
        for language, file in names.items():
            training.setdefault("label_names", {})[language] = read_names(file, len(head["labels"]))
            said.append(f"{head['name']}: {len(head['labels'])} names for {language}")
        if photos is not None:
            found = rejection(bundle, head["name"], photos, target)
            training["rejection"] = found
            said.append(f"{head['name']}: threshold {found['probability']} from {found['photos']} photos")
    shutil.copytree(bundle, out, ignore=shutil.ignore_patterns("*.sig", "signature*"))
    (out / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return said


def read_names(file: Path, labels: int) -> list[str]:
    """One name a line.

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


def rejection(bundle: Path, head: str, photos: Path, target: str) -> dict[str, float | int]:
    """The probability that :data:`KEPT` of the answers to photos of an album reach: what pages show."""
    import numpy as np

    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.recognize.golden import album_answers
    from refocus.edge.recognize.recognizer import Recognizer

    loaded = load_bundle(bundle)
    runtime, precision = target.split(":") if target else next(t for t in loaded.targets(head) if t[0] == "onnxruntime")
    people = sorted(folder for folder in photos.iterdir() if folder.is_dir()) or [photos]
    best, count = [], 0
    with Recognizer(loaded, None, runtime, precision, 1, head=head) as recognizer:
        for person in people:
            contents = {file.name: file.read_bytes() for file in sorted(person.iterdir()) if file.is_file()}
            features = [recognizer.encode(content, name) for name, content in contents.items()]
            best += [float(answer.probabilities[0]) for answer in album_answers(recognizer, [*contents], features)]
            count += len(contents)
    if not count:
        raise DemoError(f"--photos {photos} holds no photos; give a folder for each person")
    quantile = float(np.quantile(best, 1 - KEPT, method="lower"))
    return {"probability": int(quantile * 1e4) / 1e4, "kept": KEPT, "photos": count, "people": len(people)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path, help="folder of the prepared bundle")
    parser.add_argument("--photos", type=Path, help="photos of what the model knows, a folder for each person")
    parser.add_argument("--names", action="append", default=[], metavar="LANGUAGE=FILE", help="as de=names.txt")
    parser.add_argument("--target", default="", help="whose answers count, as onnxruntime:fp32")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        names = dict(name.split("=", 1) for name in given.names)
        said = prepare(given.bundle, given.out, given.photos, {k: Path(v) for k, v in names.items()}, given.target)
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
