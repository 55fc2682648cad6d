"""Ten thousand damaged bundles: an error of ours or a right load, never anything else, never a file outside."""

from __future__ import annotations

import builtins
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.manifest import decode_manifest, encode_manifest
from refocus.edge.errors import BundleError

FAST, MANY = 500, 10_000
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=40), st.builds(list), st.builds(dict),
    st.sampled_from(["../../etc/passwd", "/etc/passwd", "a\0b", ".", "..", "self-test", "\ud800", "x" * 5000, "manifest.json"]),
)  # fmt: skip


def places(value, path=()):
    """Every place in a JSON document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def take(document, path):
    for key in path[:-1]:
        document = document[key]
    del document[path[-1]]


@pytest.fixture(scope="module")
def small(bundle, tmp_path_factory):
    """The bundle with its programs replaced by a few bytes each, so that hashing takes no time."""
    folder = tmp_path_factory.mktemp("fuzz") / "bundle"
    shutil.copytree(bundle.folder, folder)
    import hashlib

    manifest = json.loads((folder / MANIFEST).read_text())
    for artifact in manifest["artifacts"]:
        content = artifact["file"].encode()
        (folder / artifact["file"]).write_bytes(content)
        artifact.update(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    (folder / MANIFEST).write_text(json.dumps(manifest))
    load_bundle(folder)
    return folder


def survives(small: Path, content: bytes, opened: list[str]) -> bool:
    """Loads a bundle with that manifest; True if it is accepted, and then it is what it says."""
    (small / MANIFEST).write_bytes(content)
    opened.clear()
    try:
        loaded = load_bundle(small)
    except BundleError:
        accepted = False
    else:
        assert decode_manifest(encode_manifest(loaded.manifest), "again") == loaded.manifest
        accepted = True
    outside = [name for name in opened if not Path(name).resolve().is_relative_to(small.resolve())]
    assert not outside, outside
    return accepted


@pytest.fixture
def opened(small, monkeypatch):
    """Names of all files that are opened for reading or writing while a bundle is loaded."""
    names: list[str] = []
    for module, name in ((builtins, "open"), (os, "open")):
        real = getattr(module, name)

        def spy(file, *args, _real=real, **kwargs):
            if isinstance(file, str | os.PathLike) and not str(file).startswith(("/proc", "/sys")):
                below = kwargs.get("dir_fd")  # a folder that is open already
                names.append(str(Path(f"/proc/self/fd/{below}").readlink() / file) if below else os.fspath(file))
            return _real(file, *args, **kwargs)

        monkeypatch.setattr(module, name, spy)
    import io

    real_open = io.open
    monkeypatch.setattr(io, "open", lambda file, *a, **k: names.append(os.fspath(file)) or real_open(file, *a, **k)
                        if isinstance(file, str | os.PathLike) else real_open(file, *a, **k))  # fmt: skip
    before = (small / MANIFEST).read_bytes()
    yield names
    (small / MANIFEST).write_bytes(before)


def run(small, opened, examples):
    original = (small / MANIFEST).read_bytes()
    document = json.loads(original)
    everywhere = [path for path in places(document) if path]
    counted = {"accepted": 0, "refused": 0}
    quick = settings(max_examples=examples // 2, deadline=None, database=None, derandomize=True,
                     suppress_health_check=list(HealthCheck))  # fmt: skip

    @quick
    @given(st.data())
    def wrong_values(data):
        changed = json.loads(original)
        for _ in range(data.draw(st.integers(1, 3))):
            path, how = data.draw(st.sampled_from(everywhere)), data.draw(st.sampled_from(["put", "take"]))
            try:
                put(changed, path, data.draw(ODD)) if how == "put" else take(changed, path)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took the place away
        content = json.dumps(changed).encode("utf-8", "surrogatepass")
        counted["accepted" if survives(small, content, opened) else "refused"] += 1

    @quick
    @given(st.data())
    def wrong_bytes(data):
        content = bytearray(original)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            kind = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
            if kind == "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == "cut":
                del content[max(at, 1) :]
            elif kind == "insert":
                content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            else:
                del content[at : at + data.draw(st.integers(1, 30))]
            content = content or bytearray(b"{")
        counted["accepted" if survives(small, bytes(content), opened) else "refused"] += 1

    wrong_values()
    wrong_bytes()
    # Both happen: a fuzzer whose inputs are all refused at the first brace tests nothing.
    assert counted["refused"] > examples / 4
    assert counted["accepted"] > 0
    return counted


def test_a_damaged_manifest_is_refused_or_right(small, opened):
    run(small, opened, FAST)


@pytest.mark.slow
def test_ten_thousand_damaged_manifests_are_refused_or_right(small, opened):
    counted = run(small, opened, MANY)
    assert sum(counted.values()) >= MANY * 0.9
