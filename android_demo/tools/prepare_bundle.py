"""Prepares a bundle for the app: how unlike what it knows a photo may be, and names of its labels in other languages.

Both go into ``training`` of each head in the manifest (docs/formats/bundle.md): a part that other readers do not look
into. Files and programs stay as they are; a signature is made anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DemoError

KEPT = 0.95  # share of the answers to photos of what a model knows that are to be given
_Answers = list[tuple[float, float]]  # energy, and probability of the best label


def prepare(bundle: Path, out: Path, photos: Path | None, names: Mapping[str, Path], target: str = "") -> list[str]:
    """Writes a copy of a bundle; says what it added.

    Args:
        photos: photos of things that the model knows, one folder for each person; they must not be photos that any
            result is measured on. None: the app's default, half the probability.
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
            said.append(f"{head['name']}: energy of at least {found['energy']}, from {found['photos']} photos")
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
    """The energy that :data:`KEPT` of the photos of what a model knows reach."""
    people, answers = _album_answers(bundle, head, photos, target)
    return {"energy": _quantile([one for one, _ in answers]), "kept": KEPT, "photos": len(answers), "people": people}


def _quantile(values: Sequence[float]) -> float:
    import numpy as np

    return math.floor(float(np.quantile(values, 1 - KEPT, method="lower")) * 1e3) / 1e3


def _album_answers(bundle: Path, head: str, photos: Path, target: str) -> tuple[int, _Answers]:
    """Of every photo of an album: what pages show. Also how many people there are."""
    from golden import album_answers, energy

    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.recognize.album import find_photos
    from refocus.edge.recognize.recognizer import Recognizer

    if not photos.is_dir():
        raise DemoError(f"{photos} is no folder; give one with photos, or with a folder for each person")
    loaded = load_bundle(bundle)
    runtime, precision = target.split(":") if target else next(t for t in loaded.targets(head) if t[0] == "onnxruntime")
    people = sorted(folder for folder in photos.iterdir() if folder.is_dir()) or [photos]
    found: _Answers = []
    with Recognizer(loaded, None, runtime, precision, 1, head=head) as recognizer:
        for person in people:
            contents = {str(file): file.read_bytes() for file in find_photos([person])}
            features = [recognizer.encode(content, name) for name, content in contents.items()]
            answers = album_answers(recognizer, [*contents], features)
            found += [(energy(answer.plain_logits), float(answer.probabilities[0])) for answer in answers]
    return len(people), found


def judge(bundle: Path, photos: Path, known: Path | None, unknown: Sequence[Path], target: str, out: Path) -> list[str]:
    """Writes a result document: how many photos of each kind get a name, by the energy and, as a control, by a
    threshold of the probability that keeps as many of the same photos. Says each row in one line.

    Args:
        photos: what both are calibrated on, as in :func:`prepare`.
        known: other photos of what the model knows.
        unknown: folders of photos of what it does not know, each an album.
    """
    from results import manifest_sha256, write_document

    from refocus.edge.bundle.load import load_bundle

    head = load_bundle(bundle).manifest.heads[0].name
    calibration = _album_answers(bundle, head, photos, target)[1]
    least = [_quantile([answer[kind] for answer in calibration]) for kind in (0, 1)]
    folders = [("calibration", photos), *([("known", known)] if known is not None else [])]
    rows = []
    for name, folder in [*folders, *((folder.name, folder) for folder in unknown)]:
        answers = calibration if folder is photos else _album_answers(bundle, head, folder, target)[1]
        named = [sum(answer[kind] >= least[kind] for answer in answers) / len(answers) for kind in (0, 1)]
        is_known = folder in (photos, known)
        rows.append({"name": name, "known": is_known, "photos": len(answers), "named": named[0],
                     "named_by_probability": named[1]})  # fmt: skip
    about = {"bundle": load_bundle(bundle).manifest.name, "bundle_sha256": manifest_sha256(bundle), "kept": KEPT,
             "energy": least[0], "probability": least[1]}  # fmt: skip
    words = ["--photos PHOTOS", "--known KNOWN", *(f"--unknown {folder.name}" for folder in unknown)]
    command = f"python android_demo/tools/prepare_bundle.py BUNDLE OUT {' '.join(words)}"
    write_document(out, "android_unknown", about, rows, command)
    return [f"{row['name']}: {row['named']:.0%} of {row['photos']} get a name, {row['named_by_probability']:.0%} by the"
            " probability" for row in rows]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path, help="folder of the prepared bundle")
    parser.add_argument("--photos", type=Path, help="photos of what the model knows, a folder for each person")
    parser.add_argument("--names", action="append", default=[], metavar="LANGUAGE=FILE", help="as de=names.txt")
    parser.add_argument("--target", default="", help="whose answers count, as onnxruntime:fp32")
    parser.add_argument("--document", type=Path, help="result document: how many photos of what it knows get a name")
    parser.add_argument("--known", type=Path, help="of --document: other photos of what it knows, a folder a person")
    parser.add_argument(
        "--unknown", type=Path, action="append", default=[], help="of --document: a folder of other things"
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from refocus.edge.errors import RefocusError

    try:
        names = dict(name.split("=", 1) for name in given.names)
        if given.document is not None and given.photos is None:
            raise DemoError("--document needs --photos, on which the energy is calibrated")
        said = prepare(given.bundle, given.out, given.photos, {k: Path(v) for k, v in names.items()}, given.target)
        if given.document is not None:
            said += judge(given.out, given.photos, given.known, given.unknown, given.target, given.document)
    except ValueError:
        sys.stderr.write(f"prepare_bundle: --names {given.names}: expected LANGUAGE=FILE, as de=names.txt\n")
        return 1
    except (DemoError, RefocusError) as error:
        sys.stderr.write(f"prepare_bundle: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
