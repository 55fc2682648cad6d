"""How many files of the device's code one photo passes through: few enough to follow with a finger."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

import refocus.edge
from refocus.edge.bundle.load import load_bundle
from refocus.edge.history.feature_history import RetentionPolicy
from refocus.edge.recognize.recognizer import Recognizer

EDGE = Path(refocus.edge.__file__).resolve().parent
RELEASE_0_1_0 = Path(__file__).parents[2] / "fixtures" / "0.1.0" / "files.tar.gz"  # its bundles have both forms of head
MOST = 15


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release-0.1.0")
    with tarfile.open(RELEASE_0_1_0) as archive:
        archive.extractall(folder)  # our own file; the filter argument is not in every Python 3.10
    return folder


def as_jpeg(content: bytes) -> bytes:
    stream = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").save(stream, "JPEG")
    return stream.getvalue()


def files_in_use(recognizer: Recognizer, jpeg: bytes) -> list[str]:
    """Files below ``edge/`` of which a line is executed while one photo is recognised."""
    entered: set[str] = set()

    def trace(frame, event, argument):
        entered.add(frame.f_code.co_filename)  # whoever is called executes a line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        recognizer.recognize(jpeg)
    finally:
        sys.settrace(before)
    files = {Path(name).resolve() for name in entered if not name.startswith("<")}
    return sorted(file.relative_to(EDGE).as_posix() for file in files if file.is_relative_to(EDGE))


def check_few(bundle, photos, profile, memory="newest"):
    """A photo for an empty history, for a growing one and for a full one, one that is stored already, and the first
    after the profile was opened."""
    keeping = RetentionPolicy(capacity=2 + bundle.manifest.head().personalisation.window)
    jpegs = [as_jpeg(photo) for photo in photos]
    shown = [*jpegs[:5], jpegs[1], *(jpegs * (keeping.capacity // len(jpegs) + 1))[5:]]
    for jpegs_now in (shown, jpegs[:1]):
        with Recognizer(bundle, profile, threads=1, memory=memory, keeping=keeping) as recognizer:
            for number, jpeg in enumerate(jpegs_now):
                files = files_in_use(recognizer, jpeg)
                assert "recognize/recognizer.py" in files, "nothing was traced"
                assert len(files) <= MOST, f"photo {number} passes through {len(files)} files: {', '.join(files)}"


@pytest.mark.parametrize("memory", ["newest", "similar"])
def test_a_photo_passes_through_few_files(bundle, stream, tmp_path, memory):
    check_few(bundle, stream, tmp_path / "anna.history.sqlite3", memory)


@pytest.mark.parametrize("form", ["window", "streaming"])
def test_a_photo_passes_through_few_files_whatever_the_head(unpacked, tmp_path, form):
    bundle = load_bundle(unpacked / "bundles" / form)
    assert bundle.manifest.head().personalisation.form == form
    check_few(bundle, [path.read_bytes() for path in sorted((unpacked / "photos").iterdir())], tmp_path / "anna")
