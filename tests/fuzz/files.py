"""Mutated personal files and files of tensors: read, kept in a cache, read from there, and used by a recogniser."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors, metadata_of
from refocus.edge.errors import PersonalWeightsError, PhotoError
from refocus.edge.personal.received_files import CHECKPOINT, METHOD, read_personal
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer, profile_path
from tests.fuzz import toys
from tests.fuzz.areas import Area, Wrong, rng_of
from tests.fuzz.onnx_mutations import scrambled

PERSON = "anna"
_ODD = (None, True, 0, -1, 1, 2**31, 2**40, 2**41, 2**63, 2**70, 1e308, 0.5, "", "F32", "F64", "BF16", "I8", "x" * 300, [], {}, [[]],
        [0, 0], [-1, 4], [4, 0], [1] * 65, [0] * 70, [2**40] * 40, "\ud800", "\0")  # fmt: skip


@dataclass
class Case:
    """One file, and the bundle that it is put for.

    Attributes:
        kept: damage it after it was put, in the cache, instead of before.
        fair: it is unharmed.
        special: instead of a file, a "fifo", "folder", "link" to itself, or "sparse" file.
    """

    bundle: str
    content: bytes
    kept: bytes | None = None
    fair: bool = False
    special: str = ""


def with_header(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with another header; its length is right."""
    length = int.from_bytes(content[:8], "little")
    header = change(json.loads(content[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8", "surrogatepass")
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


class Fuzzed(Area):
    """Puts mutated files for a person."""

    typed = (PersonalWeightsError, PhotoError)  # the latter: finite weights may give an answer that is not

    @staticmethod
    def build(material: Path) -> None:
        toys.prompted_bundle(material / "prompted")
        toys.folder_bundle(material / "folder")

    def __init__(self, material: Path, scratch: Path) -> None:
        super().__init__(material, scratch)
        self._bundles = {name: load_bundle(material / name) for name in ("prompted", "folder")}
        rng = np.random.default_rng(8)
        shapes = {"prompted": {"prompts": (1, 16)}, "folder": {"mix": (toys.POOLED, 16), "bias": (1, 16)}}
        self._sound: dict[str, bytes] = {}
        self._tensors = {}
        for name, tensors in shapes.items():
            values = {key: rng.normal(size=shape).astype(np.float32) for key, shape in tensors.items()}
            self._tensors[name] = values
            about = {METHOD: "toy", CHECKPOINT: toys.sha(name.encode())}
            content = b"".join(encode_tensors(values))
            self._sound[name] = with_header(content, lambda header, about=about: {"__metadata__": about, **header})
        self._photo = toys.png(9)
        self._expected = {name: self._answer(name, self._sound[name]) for name in shapes}

    # ---- cases

    def make(self, seed: int) -> tuple[str, Case]:
        rng = rng_of("files", seed)
        name = rng.choice([*self._sound])
        content = self._sound[name]
        kinds: dict[str, tuple[int, Callable[[], Case]]] = {
            "unharmed": (2, lambda: Case(name, content, fair=True)),
            "bytes": (30, lambda: Case(name, scrambled(content, rng))),
            "header: values": (34, lambda: Case(name, with_header(content, lambda h: self._odd_header(h, rng)))),
            "header: JSON": (6, lambda: Case(name, with_header(content, lambda h: self._odd_json(h, rng)))),
            "length": (4, lambda: Case(name, self._odd_length(rng) + content[8:])),
            "tensors": (12, lambda: Case(name, self._odd_tensors(name, rng))),
            "kept file damaged": (10, lambda: Case(name, content, kept=scrambled(self._kept(name), rng))),
            "no regular file": (2, lambda: Case(name, b"", special=rng.choice(["fifo", "folder", "link", "sparse", "zero"]))),
        }  # fmt: skip
        kind = rng.choices([*kinds], [weight for weight, _ in kinds.values()])[0]
        return kind, kinds[kind][1]()

    def _odd_header(self, header: dict[str, Any], rng: random.Random) -> Any:
        header = copy.deepcopy(header)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice([*header] or ["new"])
            inside = header.get(name)
            match rng.randrange(6):
                case 0:
                    header[rng.choice(["new", "", "x" * 250, "__metadata__", "\0", "prompts", "mix"])] = copy.deepcopy(
                        inside
                    )
                case 1:
                    header.pop(name, None)
                case 2:
                    header[name] = copy.deepcopy(rng.choice(_ODD))
                case _ if isinstance(inside, dict) and inside:
                    key = rng.choice([*inside, "new"])
                    value = inside.get(key)
                    if isinstance(value, list) and value and rng.random() < 0.7:
                        value[rng.randrange(len(value))] = copy.deepcopy(rng.choice(_ODD))
                    else:
                        inside[key] = copy.deepcopy(rng.choice(_ODD))
        return header

    def _odd_json(self, header: dict[str, Any], rng: random.Random) -> bytes:
        deep = rng.choice([100, 2000, 100_000])
        text = json.dumps(header)
        return rng.choice([b"[" * deep, b'{"a":' * deep, ('{"a": ' + "[" * deep + "]" * deep + ", " + text[1:]).encode(),
                           b"", b"null", b"[]", b"{}", b"1", text.encode("utf-16"), text.encode() + b"x",
                           ('{"x": 1, "x": 2, ' + text[1:]).encode(), ("{" + toys.members(70_000) + "}").encode(), b'{"\\ud800": {}}', b"\xff" * 20,
                           text.replace("0", "9" * 4000, 1).encode()])  # fmt: skip

    def _odd_length(self, rng: random.Random) -> bytes:
        return rng.choice([0, 1, 8, 2**20, 2**20 + 1, 2**32, 2**63, 2**64 - 1]).to_bytes(8, "little")

    def _odd_tensors(self, name: str, rng: random.Random) -> bytes:
        """A sound file of other tensors."""
        found = dict(self._tensors[name])
        key = rng.choice([*found])
        value = found[key]
        kinds: list[Callable[[], np.ndarray]] = [
            lambda: np.full_like(value, rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e20])), lambda: value.astype(np.float16),
            lambda: value.T.copy(), lambda: value[:, :4], lambda: value.astype(np.int64), lambda: np.zeros((0, 16), np.float32),
            lambda: value.astype(np.int8), lambda: value.reshape([*value.shape, *[1] * rng.choice([1, 20])]), lambda: np.float32(1).reshape(()),
        ]  # fmt: skip
        match rng.randrange(4):
            case 0:
                found["new"] = value
            case 1:
                found[f"{key} "] = found.pop(key)
            case _:
                found[key] = rng.choice(kinds)()
        content = b"".join(encode_tensors(found))
        about = {METHOD: rng.choice(["toy", "toy", "", "../x", "a" * 50, "é"]), CHECKPOINT: toys.sha(name.encode())}
        return with_header(content, lambda header: {"__metadata__": about, **header})

    def _kept(self, name: str) -> bytes:
        """The file that the cache writes for the sound one."""
        return b"".join(encode_tensors(self._tensors[name]))

    # ---- judging

    def save(self, case: Case, folder: Path) -> None:
        (folder / f"{case.bundle}.safetensors").write_bytes(case.content)
        (folder / "case.txt").write_text(f"special {case.special!r}, damaged in the cache {case.kept is not None}\n")
        if case.kept is not None:
            (folder / "kept.safetensors").write_bytes(case.kept)

    def judge(self, case: Case, run: Callable[[], None]) -> str:
        if case.kept is not None:
            return self._from_cache(case)
        if not case.special:
            self._decoded(case.content)
        try:
            logits = self._answer(case.bundle, case.content, case.special)
        except PersonalWeightsError as error:
            if case.fair:
                raise Wrong("an unharmed file is refused") from error
            raise
        if not np.isfinite(logits).all():
            raise Wrong("an answer has numbers that are not finite")
        if case.fair and not np.array_equal(logits, self._expected[case.bundle]):
            raise Wrong("an unharmed file answers otherwise than before")
        return "right" if case.fair else "accepted"

    def _decoded(self, content: bytes) -> None:
        """The decoders alone: what they accept is whole, and survives being written."""
        try:
            about = metadata_of(memoryview(content), "file")
            tensors = decode_tensors(memoryview(content), "file")
        except PersonalWeightsError:
            return
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in about.items()):
            raise Wrong("metadata that are no text")
        total = sum(value.nbytes for value in tensors.values())
        if 8 + int.from_bytes(content[:8], "little") + total != len(content):
            raise Wrong("tensors that are not the rest of the file")
        if tensors and all(0 < len(name) <= 200 for name in tensors):
            again = decode_tensors(memoryview(b"".join(encode_tensors(tensors))), "again")
            if {n: v.tobytes() for n, v in again.items()} != {n: v.tobytes() for n, v in tensors.items()}:
                raise Wrong("tensors do not survive being written")

    def _answer(self, name: str, content: bytes, special: str = "") -> np.ndarray:
        """``personal put`` of a file, and a photo answered with it."""
        profiles = self.scratch / "profiles"
        shutil.rmtree(profiles, ignore_errors=True)
        profiles.mkdir()
        path = profiles / f"{PERSON}.safetensors"
        _write(path, content, special)
        cache = self._put(self._bundles[name], path, profiles)
        return self._served(name, profiles, cache)

    def _put(self, bundle: Bundle, path: Path, profiles: Path) -> PersonalWeightStore:
        found = read_personal(path, bundle)
        cache = PersonalWeightStore(profiles / "weights", sync=False)
        for model in found.models:
            cache.put(PERSON, model, found.weights)
            weights = cache.get(PERSON, model)
            if weights is None or {n: v.tobytes() for n, v in weights.tensors.items()} != {
                n: v.tobytes() for n, v in found.weights.tensors.items()
            }:
                raise Wrong("the cache gives other tensors than were put")
        return cache

    def _served(self, name: str, profiles: Path, cache: PersonalWeightStore) -> np.ndarray:
        with Recognizer(self._bundles[name], profile_path(profiles, PERSON), threads=1, weights=cache) as recognizer:
            logits: np.ndarray = recognizer.recognize(self._photo).logits
        return logits

    def _from_cache(self, case: Case) -> str:
        """The file is put whole and damaged where it lies: it is found out, set aside, and then there is none."""
        profiles, bundle = self.scratch / "profiles", self._bundles[case.bundle]
        self._answer(case.bundle, case.content)
        [kept] = (profiles / "weights" / PERSON).iterdir()
        same = kept.read_bytes() == case.kept
        assert case.kept is not None
        kept.write_bytes(case.kept)
        cache = PersonalWeightStore(profiles / "weights", sync=False)
        try:
            logits = self._served(case.bundle, profiles, cache)
        except PersonalWeightsError:
            if same:
                raise Wrong("an unharmed file in the cache is refused") from None
            with Recognizer(bundle, profile_path(profiles, PERSON), threads=1, weights=cache) as recognizer:
                recognizer.recognize(self._photo)  # the bundle's own weights serve
            raise
        if not same or not np.array_equal(logits, self._expected[case.bundle]):
            raise Wrong("a damaged file in the cache is served")
        return "right"


def _write(path: Path, content: bytes, special: str) -> None:
    match special:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(path.name)
        case "zero":
            path.symlink_to("/dev/zero")
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)
        case _:
            path.write_bytes(content)
