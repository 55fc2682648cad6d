"""Mutated bundles: loaded, and where they are accepted, their programs run; none may read a file outside its folder."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.manifest import decode_manifest, encode_manifest
from refocus.edge.errors import BundleError, RefocusError
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import answer_all
from refocus.edge.taper.bank import Bank
from tests.fuzz import onnx_mutations, toys
from tests.fuzz.areas import MARKER, Area, Canaries, Wrong, rng_of

CANARY = "canary.bin"
TIME_LIMIT = 2.0  # seconds of one run, as is advised for bundles of strangers
# Of a file: its bytes; or ("link", target), ("link", target, bytes there), ("fifo",), ("folder",), ("sparse", size).
Content = bytes | tuple[Any, ...]
_ODD = (None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 1e308, -0.0, 0.5, "", "x", "\0", "a\nb", "é" * 300, [], {},
        [[]], {"": None}, "../../canary.bin", "/etc/passwd", ".", "..", "self-test", "manifest.json", "x" * 5000, "1.²",
        "١.٢", "99.0", "f" * 64, "f" * 64 + "\n", "inputs", "weights", "whole", "streaming", "none", "int64")  # fmt: skip


@dataclass
class Case:
    """One bundle: its manifest, and its files by name.

    Attributes:
        refuse: why it must not be loaded; "" where it may be.
        accept: whether it must be.
    """

    manifest: bytes
    files: dict[str, Content]
    refuse: str = ""
    accept: bool = False


@dataclass
class Toy:
    """An unharmed bundle in memory."""

    manifest: bytes
    files: dict[str, bytes]
    document: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Toy:
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        manifest = files.pop(MANIFEST)
        return cls(manifest, files, json.loads(manifest))

    def case(self, **more: Any) -> Case:
        return Case(self.manifest, dict(self.files), **more)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place below the top of a JSON document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def holder(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


# ---- kinds of mutation: each takes an unharmed bundle and random numbers


def nothing(toy: Toy, rng: random.Random) -> Case:
    return toy.case(accept=True)


def wrong_values(toy: Toy, rng: random.Random) -> Case:
    """One to three fields of the manifest have another value, or that of another field, or are gone or new."""
    document = copy.deepcopy(toy.document)
    for _ in range(rng.randint(1, 3)):
        everywhere = places(document)
        path = rng.choice(everywhere)
        inside = holder(document, path)
        match rng.randrange(6):
            case 0:
                del inside[path[-1]]
            case 1:
                other = rng.choice(everywhere)
                inside[path[-1]] = copy.deepcopy(holder(document, other)[other[-1]])
            case 2 if isinstance(inside, list):
                inside.append(copy.deepcopy(inside[path[-1]]))
            case 3 if isinstance(inside, dict):
                inside[rng.choice(["new", "", "file", "sha256", "head"])] = copy.deepcopy(rng.choice(_ODD))
            case 4 if isinstance(inside[path[-1]], int):
                inside[path[-1]] += rng.choice([-1, 1, 2, 1000, -(10**6)])
            case _:
                inside[path[-1]] = copy.deepcopy(rng.choice(_ODD))
    case = toy.case()
    case.manifest = encoded(document)
    return case


def wrong_bytes(toy: Toy, rng: random.Random) -> Case:
    case = toy.case()
    case.manifest = onnx_mutations.scrambled(toy.manifest, rng)
    return case


def wrong_json(toy: Toy, rng: random.Random) -> Case:
    """Nesting, numbers, keys and encodings that readers of JSON disagree on."""
    text = toy.manifest.decode()
    deep = rng.choice([10, 200, 2000, 100_000])
    kinds: list[Callable[[], bytes]] = [
        lambda: ("[" * deep).encode(),
        lambda: (("[" * deep) + ("]" * deep)).encode(),
        lambda: text.replace('"training": {', '"training": {"deep": ' + "[" * deep + "]" * deep + ", ", 1).encode(),
        lambda: text.replace('"training": {', '"training": {"deep": ' + '{"a":' * deep + "1" + "}" * deep + ", ", 1).encode(),
        lambda: text.replace("{", '{"schema_version": 1, ', 1).encode(),
        lambda: text.replace("0.5", rng.choice(["1e999", "NaN", "Infinity", "9" * 5000, "-0", "1e-999", "0x1"]), 1).encode(),
        lambda: b"\xef\xbb\xbf" + toy.manifest,
        lambda: text.encode("utf-16"),
        lambda: toy.manifest + rng.choice([b" ", b"{}", b"\0", b"\n" * 1000]),
        lambda: b'"' + b"x" * rng.choice([10, 17 << 20]) + b'"',
        lambda: b"",
        lambda: text.replace("toys", rng.choice(["\\ud800", "\\u0000", "\\x", "\ud7ff"]), 1).encode(),
        lambda: text.replace('"artifacts"', '"artifacts": [], "artifacts"', 1).encode(),
        lambda: text.replace("{", "{" + toys.members(100_000) + ", ", 1).encode(),
    ]  # fmt: skip
    case = toy.case()
    case.manifest = rng.choice(kinds)()
    return case


def files_changed(toy: Toy, rng: random.Random) -> Case:
    """A listed file differs, and its SHA-256 in the manifest does not know."""
    case, name = toy.case(), rng.choice([*toy.files])
    before = toy.files[name]
    match rng.randrange(5):
        case 0:
            changed = onnx_mutations.scrambled(before, rng)
        case 1:
            changed = before[: rng.randrange(len(before))]
        case 2:
            changed = before + rng.randbytes(rng.randint(1, 100))
        case 3:
            changed = toy.files[rng.choice([*toy.files])]
        case _:
            flipped = bytearray(before)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            changed = bytes(flipped)
    case.files[name] = changed
    case.refuse = f"{name} was changed" if changed != before else ""
    return case


def files_of_another_kind(toy: Toy, rng: random.Random) -> Case:
    """In a file's place, or beside it, stands something that is not a regular file of this folder."""
    case, name = toy.case(), rng.choice([*toy.files, MANIFEST])
    up = "../" * (name.count("/") + 1)
    kinds: list[tuple[Content, str]] = [
        (("fifo",), "is no file"),
        (("folder",), "is no file"),
        (("link", f"{up}{CANARY}"), "leads out"),
        (("link", "/dev/zero"), "leads out"),
        (("link", "/dev/stdin"), "leads out"),
        (("link", name.split("/")[-1]), "leads to itself"),
        (("link", f"{up}same/{name}", toy.files.get(name, toy.manifest)), "leads out"),  # to what is listed
        (("link", "nowhere"), "is gone"),
        (("sparse", rng.choice([1 << 20, 1 << 33, 1 << 42])), "is of another size"),
    ]
    content, why = rng.choice(kinds)
    case.files[name] = content
    case.refuse = f"{name} {why}"
    return case


def files_beside(toy: Toy, rng: random.Random) -> Case:
    """Things that the manifest does not list, among them some in the folders of programs."""
    case = toy.case()
    folders = sorted({name.rsplit("/", 1)[0] for name in toy.files if "/" in name} - {"self-test"})
    where = rng.choice([*folders, ""])
    name = rng.choice(["new", "new.onnx", b"\xff\xfe".decode("utf-8", "surrogateescape"), "a\nb", "x" * 200, "é"])
    kinds: list[Content] = [b"x", ("fifo",), ("link", "../" * (1 + bool(where)) + CANARY), ("link", name), ("folder",),
                            ("sparse", 1 << 40), ("link", "/dev/zero")]  # fmt: skip
    chosen = rng.choice(kinds)
    case.files[f"{where}/{name}".lstrip("/")] = chosen
    case.refuse = f"{where} has a file more" if where and chosen != ("folder",) else ""
    return case


def programs_edited(toy: Toy, rng: random.Random) -> Case:
    """A program differs, and its SHA-256 was renewed."""
    case, name = toy.case(), rng.choice([n for n in toy.files if n.endswith(".onnx")])
    outside = [CANARY, f"../{CANARY}", f"../../{CANARY}", f"./{CANARY}", f"/proc/self/cwd/{CANARY}", "/etc/passwd",
               "weights.bin", "", "program.onnx", "\0", CANARY + "\0.bin"]  # fmt: skip
    if rng.random() < 0.3:
        case.files[name] = onnx_mutations.scrambled(toy.files[name], rng)
    else:
        which = rng.choice([*onnx_mutations.EDITS])
        case.files[name] = onnx_mutations.mutated(toy.files[name], rng, outside, which)
    case.manifest = renewed(toy, case.files)
    return case


def other_files_edited(toy: Toy, rng: random.Random) -> Case:
    """Weights, photos, defaults or the numbers of a bank differ, and their SHA-256 was renewed."""
    case, name = toy.case(), rng.choice([n for n in toy.files if not n.endswith(".onnx")])
    case.files[name] = onnx_mutations.scrambled(toy.files[name], rng)
    case.manifest = renewed(toy, case.files)
    return case


def renewed(toy: Toy, files: dict[str, Any]) -> bytes:
    """The manifest with the sizes and SHA-256 of changed files."""
    document = copy.deepcopy(toy.document)
    listed = [*document["artifacts"], *document.get("self_test_photos", ())]
    listed += [a["defaults"] for a in document["artifacts"] if a.get("defaults")]
    listed += [document["bank"]] if document.get("bank") else []
    for entry in listed:
        name = entry["file"]
        if name in files:
            entry["sha256"], entry["size_bytes"] = toys.sha(files[name]), len(files[name])
            continue
        inside = {n[len(name) + 1 :]: content for n, content in files.items() if n.startswith(f"{name}/")}
        entry.update(toys.tree_of(inside))
    return encoded(document)


KINDS: dict[str, tuple[int, Callable[[Toy, random.Random], Case]]] = {
    "unharmed": (2, nothing),
    "manifest: values": (24, wrong_values),
    "manifest: bytes": (14, wrong_bytes),
    "manifest: JSON": (4, wrong_json),
    "files changed": (16, files_changed),
    "files of another kind": (8, files_of_another_kind),
    "files beside": (4, files_beside),
    "programs, SHA-256 renewed": (20, programs_edited),
    "other files, SHA-256 renewed": (8, other_files_edited),
}


class Fuzzed(Area):
    """Loads mutated bundles and runs what is accepted."""

    @staticmethod
    def build(material: Path) -> None:
        for name, make in toys.BUNDLES.items():
            make(material / name)

    def __init__(self, material: Path, scratch: Path) -> None:
        super().__init__(material, scratch)
        self._toys = [Toy.read(material / name) for name in toys.BUNDLES]
        self._place = scratch / "place"
        self._place.mkdir(parents=True, exist_ok=True)
        self._canaries = Canaries(scratch / CANARY, self._place / CANARY)
        self._photo = toys.png(7)
        self._expected: dict[tuple[bytes, str], np.ndarray] = {}

    def make(self, seed: int) -> tuple[str, Case]:
        rng = rng_of("bundles", seed)
        kind = rng.choices([*KINDS], [weight for weight, _ in KINDS.values()])[0]
        return kind, KINDS[kind][1](rng.choice(self._toys), rng)

    def save(self, case: Case, folder: Path) -> None:
        write(case, folder / "place" / "bundle")

    def judge(self, case: Case, run: Callable[[], None]) -> str:
        folder = self._place / "bundle"
        write(case, folder)
        self._canaries.touched()
        try:
            return self._used(case, folder, run)
        finally:
            if touched := self._canaries.touched():
                raise Wrong(
                    f"a file outside of the bundle was opened ({'../' * (touched[0].parent != self.scratch)}canary)"
                )

    def _used(self, case: Case, folder: Path, run: Callable[[], None]) -> str:
        try:
            bundle = load_bundle(folder)
        except BundleError as error:
            if case.accept:
                raise Wrong("an unharmed bundle is refused") from error
            return "refused"
        except RefocusError as error:
            raise Wrong(f"load_bundle raises {type(error).__name__}") from error
        if case.refuse:
            raise Wrong(f"loaded, though a file {_short(case.refuse)}")
        if decode_manifest(encode_manifest(bundle.manifest), "again") != bundle.manifest:
            raise Wrong("the manifest that was accepted does not survive being written")
        bundle.files()
        run()
        right = True
        for head in bundle.manifest.heads:
            for target in bundle.targets(head.name):
                right &= self._recognises(bundle, case, head.name, *target)
        if bundle.manifest.bank is not None:
            bank = Bank.open(folder)
            shutil.rmtree(self.scratch / "out", ignore_errors=True)
            bank.condense(bank.task(bank.labels[:2]), self.scratch / "out")
            load_bundle(self.scratch / "out")
        return "right" if right else "accepted"

    def _recognises(self, bundle: Any, case: Case, head: str, runtime: str, precision: str) -> bool:
        """Answers a photo; returns whether the answer is known to be right."""
        with Recognizer(bundle, None, runtime, precision, threads=1, head=head, time_limit=TIME_LIMIT) as recognizer:
            answers = [recognizer.recognize(self._photo), *answer_all(bundle, recognizer)]
        for answer in answers:
            for numbers in (answer.feature, answer.logits, answer.probabilities):
                if not np.isfinite(numbers).all():
                    raise Wrong("an answer has numbers that are not finite")
                if np.isclose(numbers, MARKER).any() or np.isclose(numbers, 2 * MARKER).any():
                    raise Wrong("numbers of a file outside are in an answer")
            if not math.isclose(float(answer.probabilities.sum()), 1, abs_tol=1e-3):
                raise Wrong("probabilities do not sum to one")
        known = [toy for toy in self._toys if toy.manifest == case.manifest and toy.files == case.files]
        if not known:
            return False
        expected = self._expected.setdefault((case.manifest, head), answers[0].logits)
        if not np.allclose(expected, answers[0].logits, atol=1e-4):
            raise Wrong("an unharmed bundle answers otherwise than before")
        return True


def _short(why: str) -> str:
    return why.split(" ", 1)[1]


def write(case: Case, folder: Path) -> None:
    """Writes a bundle, and beside it unharmed copies that links may lead to."""
    for old in (folder, folder.parent / "same"):
        if old.is_symlink() or old.exists():
            shutil.rmtree(old)
    folder.mkdir(parents=True)
    for name, content in {MANIFEST: case.manifest, **case.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, content)
        if isinstance(content, tuple) and len(content) == 3:
            same = folder.parent / "same" / name
            same.parent.mkdir(parents=True)
            same.write_bytes(content[2])


def _write(path: Path, content: Content) -> None:
    match content:
        case ("link", target, *_):
            path.symlink_to(target)
        case ("fifo",):
            os.mkfifo(path)
        case ("folder",):
            path.mkdir(exist_ok=True)
        case ("sparse", size):
            path.touch()
            os.truncate(path, size)
        case bytes():
            path.write_bytes(content)
