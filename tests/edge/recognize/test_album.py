"""An album: batches, windows on both sides, and what a kill may cost."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import HistoryError, RefocusError
from refocus.edge.files import printable
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.photos.header import capture_time
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.album import answer_album, find_photos, nearest
from refocus.edge.recognize.recognizer import AT_ONCE, Recognizer

PHOTOS, COPIED = 20, 4  # photos in the album; which of them has a copy at the end


@pytest.fixture
def folder(stream, tmp_path):
    """Photos of one person, the copy of one of them, and a broken one in between."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, content in enumerate(stream[:PHOTOS]):
        (folder / f"{number:02d}.png").write_bytes(content)
    (folder / "zz copy.png").write_bytes(stream[COPIED])
    (folder / "07 broken.png").write_bytes(stream[7][:300])
    return folder


@pytest.fixture
def recognizer(bundle):
    with Recognizer(bundle, threads=1) as opened:
        yield opened


def answered(recognizer, folder, name="results.csv", **more):
    more = {"order": "name", "batch": 4, "workers": 1, **more}
    return answer_album(recognizer, find_photos([folder]), folder.parent / name, **more)


def whole(rows):
    return [row for row in rows if not row.error]


def assert_same(row, answer):
    wanted = [*zip(answer.labels, answer.probabilities.tolist(), strict=True)][:3]
    assert [(shown.label, pytest.approx(shown.probability, abs=1e-4)) for shown in row.answer] == wanted
    assert row.answer[0].confidence == pytest.approx(answer.confidence, abs=1e-4)
    assert row.trust == pytest.approx(answer.trust, abs=1e-4)


def identity(file):
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


# ---- features


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_a_batch_gives_the_features_of_single_photos(recognizer, stream, size):
    pixels = [preprocess(photo, recognizer.manifest.preprocessing) for photo in stream[:size]]
    single = np.stack([recognizer.feature_of(photo) for photo in pixels])
    np.testing.assert_allclose(recognizer.features_of(np.concatenate(pixels)), single, atol=1e-5)


def test_an_encoder_for_one_photo_at_a_time_is_never_given_more(bundle, recognizer, stream, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    (encoder,) = (a for a in manifest["artifacts"] if a["role"] == "encoder")
    encoder["inputs"][0]["shape"][0] = encoder["outputs"][0]["shape"][0] = 1
    (tmp_path / "bundle" / "manifest.json").write_text(json.dumps(manifest))
    pixels = np.concatenate([preprocess(photo, recognizer.manifest.preprocessing) for photo in stream[:5]])
    with Recognizer(load_bundle(tmp_path / "bundle"), threads=1) as fixed:
        with pytest.raises(ValueError, match="got float32"):
            fixed.encoder.run(photo=pixels)
        np.testing.assert_allclose(fixed.features_of(pixels), recognizer.features_of(pixels), atol=1e-5)


def test_a_runtime_is_never_given_more_photos_than_it_was_built_for(recognizer, stream, monkeypatch):
    pixels = np.concatenate([preprocess(photo, recognizer.manifest.preprocessing) for photo in stream[:8]])
    wanted = recognizer.features_of(pixels)
    monkeypatch.setitem(AT_ONCE, "onnxruntime", 3)
    run = recognizer.encoder.run_unchecked
    sizes = []
    monkeypatch.setattr(recognizer.encoder, "run_unchecked", lambda i: sizes.append(len(i["photo"])) or run(i))
    np.testing.assert_allclose(recognizer.features_of(pixels), wanted, atol=1e-5)
    assert sizes == [3, 3, 2]


def test_what_is_stored_is_not_encoded_again_and_a_copy_not_twice(recognizer, folder):
    """The work file is given the feature of another photo: only one that reads it answers so."""
    clean = answered(recognizer, folder)
    assert clean.encoded == PHOTOS  # neither the broken photo nor the copy
    wrong = recognizer.encode((folder / "03.png").read_bytes())
    with FeatureHistory(folder.parent / "results.csv.unfinished") as work:
        work.append(recognizer.space, identity(folder / "00.png"), wrong)
    again = answered(recognizer, folder)
    assert again.encoded == PHOTOS - 1
    assert again.rows[0].answer != clean.rows[0].answer


def test_features_of_another_encoder_are_never_used(recognizer, folder):
    clean = answered(recognizer, folder)
    with FeatureHistory(folder.parent / "results.csv.unfinished") as work:
        for file in find_photos([folder]):
            work.append("another space", identity(file), np.ones(recognizer.width, dtype=np.float32))
    again = answered(recognizer, folder)
    assert again == clean


# ---- windows


def test_a_window_is_the_nearest_photos_on_both_sides_and_never_the_photo_or_a_copy():
    rng = np.random.default_rng(0)
    for _ in range(300):
        identities = rng.integers(0, 30, rng.integers(1, 40)).astype(str).tolist()
        position, count = int(rng.integers(len(identities))), int(rng.integers(8))
        found = nearest(identities, position, count)
        assert found == sorted(found)
        names = [identities[other] for other in found]
        assert identities[position] not in names
        assert len(set(names)) == len(names) == min(count, len(set(identities)) - 1)
        reach = max((abs(other - position) for other in found), default=0)
        nearer = identities[max(0, position - reach + 1) : position + reach]
        assert set(nearer) <= {identities[position], *names}
    assert nearest(list("abcdefg"), 3, 4) == [1, 2, 4, 5]
    assert nearest(list("abcdefg"), 0, 3) == [1, 2, 3]
    assert nearest(list("abcdefg"), 3, 3) == [1, 2, 4]


def test_an_answer_in_the_album_is_the_one_over_its_window(recognizer, folder):
    rows = whole(answered(recognizer, folder).rows)
    files = [file for file in find_photos([folder]) if "broken" not in file.name]
    features = np.stack([recognizer.encode(file.read_bytes()) for file in files])
    names = [identity(file) for file in files]
    assert [row.file for row in rows] == [str(file) for file in files]
    for position, row in enumerate(rows):
        window = nearest(names, position, recognizer.window)
        answer = recognizer.answer(features[position], features[window])
        assert_same(row, answer)
        heaviest = sorted(zip(answer.attention[:-1], window, strict=True), reverse=True)[:5]
        first_of_it = [files[names.index(names[other])] for _, other in heaviest]
        assert {name for name, _ in row.rests_on} == {str(file) for file in first_of_it}
        np.testing.assert_allclose([w for _, w in row.rests_on], [w for w, _ in heaviest], atol=1e-4)


def test_the_most_similar_photos_are_looked_for_in_the_whole_album(recognizer, folder):
    rows = whole(answered(recognizer, folder, memory="similar").rows)
    files = [file for file in find_photos([folder]) if "broken" not in file.name]
    features = np.stack([recognizer.encode(file.read_bytes()) for file in files])
    names = [identity(file) for file in files]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for position, row in enumerate(rows):
        order = np.argsort(-unit @ unit[position], kind="stable")
        first_of_each = {names[other]: other for other in order[::-1] if names[other] != names[position]}
        window = [other for other in order if other in first_of_each.values()][: recognizer.window]
        assert_same(row, recognizer.answer(features[position], features[window[::-1]]))


def test_a_photo_alone_has_no_window_and_a_broken_album_no_answer(recognizer, folder, stream):
    report = answer_album(recognizer, [folder / "00.png", folder / "07 broken.png"], folder.parent / "r.json")
    assert report.rows[0].rests_on == ()
    assert_same(report.rows[0], recognizer.recognize(stream[0]))
    report = answer_album(recognizer, [folder / "07 broken.png"], folder.parent / "r.json")
    assert report.failed == len(report.rows) == 1


# ---- profiles (streaming heads: tests/export/parity/test_streaming.py, where one is exported)


def test_a_profile_stands_before_the_album_and_only_grows_where_it_shall_remember(bundle, folder, stream, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as device:
        for number, photo in enumerate(stream[PHOTOS:]):
            device.recognize(photo, f"old {number}")
        stored = device.history.entries()
        rows = whole(answered(device, folder).rows)
        assert device.history.entries() == stored
        past = device.history.recall(device.space, 99, device.width)
        features = np.stack([device.encode((folder / f"{number:02d}.png").read_bytes()) for number in range(16)])
        # The first photo has the profile's newest on one side, the album on the other.
        window = np.concatenate([past.features[-8:], features[1:8]])
        assert_same(rows[0], device.answer(features[0], window))
        assert any(name.startswith("old ") for row in rows[:3] for name, _ in row.rests_on)
        answered(device, folder, remember=True)
        names = [entry.name for entry in device.history.entries()][len(stored) :]
        assert names == [str(folder / f"{number:02d}.png") for number in range(PHOTOS)]
        assert device.history.entries()[: len(stored)] == stored


def test_a_photo_that_the_profile_has_too_never_meets_itself(bundle, recognizer, folder, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as device:
        clean = answered(recognizer, folder)
        answered(device, folder, remember=True)
        assert answered(device, folder).rows == clean.rows


# ---- which photos, in which order


def test_an_album_is_in_the_order_its_photos_were_taken(recognizer, tmp_path):
    times = {"a.jpg": "2024:05:01 12:00:00", "b.jpg": None, "c.jpg": "2023:01:01 00:00:00", "d.jpg": "    :  :     "}
    for seed, (name, taken) in enumerate(times.items()):
        exif = Image.Exif()
        if taken:
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
        noise = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / name, exif=exif)
    files = find_photos([tmp_path])
    assert [file.name for file in files] == [*times]
    for order, names in (("time", "cabd"), ("name", "abcd")):
        report = answer_album(recognizer, files, tmp_path / "r.csv", order)
        assert [Path(row.file).name for row in report.rows] == [f"{name}.jpg" for name in names]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_capture_time_is_found_and_a_damaged_one_stops_nothing():
    def photo(form, fraction=None):
        stream, exif = io.BytesIO(), Image.Exif()
        exif[ExifTags.Base.Make] = "a camera"
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:01 12:00:00"
        if fraction:
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.SubsecTimeOriginal] = fraction
        Image.new("RGB", (9, 9)).save(stream, form, exif=exif)
        return stream.getvalue()

    for form in ("JPEG", "PNG", "WEBP"):
        assert capture_time(photo(form)) == "2024:05:01 12:00:00"
    assert capture_time(photo("JPEG", "25")) == "2024:05:01 12:00:00.25"
    content = photo("JPEG")
    rng = random.Random(0)
    for _ in range(200):
        broken = bytearray(content)
        for _ in range(5):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        assert isinstance(capture_time(bytes(broken)), str)
    assert capture_time(b"no photo") == ""


def test_a_folder_gives_its_photos_and_no_hidden_or_other_files(tmp_path):
    for name in ("b/2.JPG", "b/1.png", "a.heic", "notes.txt", ".hidden.png", "b/.trash/3.png", "d.png/4.png"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).touch()
    folder = tmp_path / "x"
    found = [
        str(file.relative_to(folder)) for file in find_photos([folder, folder / "b" / "1.png", folder / "notes.txt"])
    ]
    assert found == ["a.heic", "b/1.png", "b/2.JPG", "d.png/4.png", "notes.txt"]


@pytest.mark.parametrize("of_clips", [False, True])
def test_the_photos_of_a_linked_folder_are_found_once_and_no_link_leads_in_a_circle(tmp_path, of_clips):
    for name in ("x/z/1.png", "elsewhere/2.png", "x/.trash/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    links = {"a": "z", "b": "../elsewhere", "c": "../elsewhere", "z/circle": "..", "t": ".trash"}
    for name, target in links.items():
        (tmp_path / "x" / name).symlink_to(target)
    found = find_photos([tmp_path / "x", tmp_path / "elsewhere", tmp_path / "x" / "z"], of_clips)
    assert [str(file.relative_to(tmp_path / "x")) for file in found] == ["b/2.png", "t/3.png", "z/1.png"]


def test_a_place_without_photos_is_refused(tmp_path):
    with pytest.raises(RefocusError, match=r"no photo in it; expected names ending in \.avif.* or \.webp"):
        find_photos([tmp_path])
    with pytest.raises(RefocusError, match="is not there; give photos, or folders"):
        find_photos([tmp_path / "albm"])


# ---- results


def test_a_broken_photo_is_a_row_and_not_the_end(recognizer, folder):
    (folder / "link.png").symlink_to(folder / "nowhere")
    report = answered(recognizer, folder)
    bad = {Path(row.file).name: row.error for row in report.rows if row.error}
    assert report.failed == 2
    assert "07 broken.png is damaged or truncated" in bad["07 broken.png"]
    assert "cannot be read" in bad["link.png"]
    assert all(row.answer for row in whole(report.rows))


def test_both_formats_say_what_the_rows_say_whatever_the_files_are_called(recognizer, folder):
    (folder / 'quoted ", name.png').write_bytes((folder / "01.png").read_bytes() + b"more")
    (folder / os.fsdecode(b"no \xff text.png")).write_bytes((folder / "02.png").read_bytes() + b"more")
    rows = answered(recognizer, folder, "r.csv").rows
    with (folder.parent / "r.csv").open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert answered(recognizer, folder, "r.JSON").rows == rows
    documents = json.loads((folder.parent / "r.JSON").read_text(encoding="utf-8"))
    assert [*table[0]] == ["file", "label", "confidence", "label_2", "confidence_2", "label_3", "confidence_3", "trust",
                           "rests_on", "known", "error"]  # fmt: skip
    for row, line, document in zip(rows, table, documents, strict=True):
        assert (line["file"], document["file"]) == (printable(row.file), row.file)
        assert (line["error"], document["error"] or "") == (row.error, row.error)
        if row.error:
            assert (line["label"], line["trust"], document["answer"], document["trust"]) == ("", "", [], None)
            continue
        assert (line["label_3"], float(line["confidence_3"])) == row.answer[2][:2]
        assert document["answer"] == [shown._asdict() for shown in row.answer]
        assert float(line["trust"]) == document["trust"] == row.trust
        rests_on = [entry["file"] for entry in document["rests_on"]]
        assert rests_on == [name for name, _ in row.rests_on]
        assert line["rests_on"].split("; ") == [printable(name) for name in rests_on]


def test_more_labels_than_there_are_cannot_be_asked_for(recognizer, folder):
    report = answered(recognizer, folder, top=10_000)
    assert len(report.rows[0].answer) == len(recognizer.card.labels)
    header, first, *_ = csv.reader((folder.parent / "results.csv").read_text().splitlines())
    assert len(header) == len(first) == 2 * len(recognizer.card.labels) + 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out": "r.txt"}, r"r\.txt: expected the name of a file, ending in \.csv, \.html or \.json"),
        ({"out": "folder.csv"}, r"folder\.csv: expected the name of a file"),
        ({"out": "nowhere/r.csv"}, r"nowhere cannot hold it \(No such file or directory\); make the folder"),
        ({"out": "file/r.csv"}, r"cannot be written \(Not a directory\)"),
        ({"order": "size"}, "--order size: expected time or name"),
        ({"memory": "oldest"}, "--memory oldest: expected newest or similar"),
        ({"remember": True}, "--remember: expected --profile NAME"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(recognizer, folder, tmp_path, arguments, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    out = tmp_path / arguments.pop("out", "r.csv")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RefocusError, match=message):
        answer_album(recognizer, find_photos([folder]), out, **arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_feature_that_went_missing_is_named_and_made_again(recognizer, folder):
    work_file = folder.parent / "results.csv.unfinished"

    def track(items, what, total):
        if what == "answering":
            with FeatureHistory(work_file) as work:
                work.erase(photo=identity(folder / "05.png"))
        return items

    with pytest.raises(HistoryError, match=r"results\.csv\.unfinished: the feature of photo .* is gone; .* again"):
        answered(recognizer, folder, track=track)
    assert answered(recognizer, folder).encoded == 1


def test_results_that_cannot_be_written_cost_neither_the_earlier_ones_nor_the_work(recognizer, folder):
    import resource

    out, before = folder.parent / "results.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    out.write_text("earlier")

    def track(items, what, total):
        yield from items
        if what == "answering":  # no file may grow from now on, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))

    try:
        with pytest.raises(OSError, match="too large"):
            answered(recognizer, folder, track=track)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert out.read_text() == "earlier"
    assert not (folder.parent / ".results.csv.tmp").exists()
    assert answered(recognizer, folder).encoded == 0


# ---- kills

ALBUM = """
import os, signal, sys
from pathlib import Path
import refocus.edge.recognize.album
from refocus.edge.bundle.load import load_bundle
from refocus.edge.history.feature_history import RetentionPolicy
from refocus.edge.recognize.recognizer import Recognizer

bundle, folder, out, profile = map(Path, sys.argv[1:])
recognizer = Recognizer(load_bundle(bundle), threads=1, keeping=RetentionPolicy(capacity=16))
files = refocus.edge.recognize.album.find_photos([folder])
recognizer.encode(files[0].read_bytes())  # warm

def moment(name):
    os.write(1, (name + "\\n").encode())
    while name == stop:
        signal.pause()

def numbered(items, what):
    for number, item in enumerate(items):
        moment(f"{what} {number}")
        yield item

def after(function, what):
    def wrapped(*arguments):
        result = function(*arguments)
        moment(next(names))
        return result
    names = (f"{what} {number}" for number in range(1000))
    return wrapped

def before(function, what):
    def wrapped(*arguments):
        moment(what)
        return function(*arguments)
    return wrapped

print("warm", flush=True)
for line in sys.stdin:
    stop = line.strip()
    child = os.fork()
    if child == 0:
        os.write(1, f"{os.getpid()}\\n".encode())
        recognizer.switch(profile)
        recognizer.history.append = after(recognizer.history.append, "remembered")
        Path.replace = before(Path.replace, "written 0")
        refocus.edge.recognize.album._discard = before(refocus.edge.recognize.album._discard, "in place")
        report = refocus.edge.recognize.album.answer_album(
            recognizer, files, out, "name", 4, remember=True, track=lambda items, what, total: numbered(items, what))
        moment(f"done {report.encoded}")
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Nursery:
    """A warm process that forks one run of the album per order, which stops at a moment and waits to be killed."""

    def __init__(self, *arguments):
        command = [sys.executable, "-c", ALBUM, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "warm\n"

    def run(self, stop="never", delay=None):
        """Runs until the moment, or for so many seconds, then kills; returns the moments that passed."""
        self.process.stdin.write(stop + "\n")
        self.process.stdin.flush()
        pid, passed = int(self.process.stdout.readline()), []
        if delay is not None:
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):  # it was done before
                os.kill(pid, signal.SIGKILL)
        for line in iter(self.process.stdout.readline, "gone\n"):
            passed.append(line.strip())
            if passed[-1] == stop:
                os.kill(pid, signal.SIGKILL)
        return passed


@pytest.fixture
def nursery(bundle, folder, stream, tmp_path):
    """The runs of an album, and everything they start from: a profile with photos, earlier results."""
    place = tmp_path / "place"
    place.mkdir()
    with Recognizer(bundle, tmp_path / "profile", threads=1) as device:
        for number, photo in enumerate(stream[PHOTOS:]):
            device.recognize(photo, f"old {number}")
    nursery = Nursery(bundle.folder, folder, place / "r.csv", place / "p")
    yield nursery
    nursery.process.kill()
    nursery.process.communicate()


def begin(tmp_path):
    for file in (tmp_path / "place").iterdir():
        file.unlink()
    shutil.copyfile(tmp_path / "profile", tmp_path / "place" / "p")
    (tmp_path / "place" / "r.csv").write_text("earlier")


def end(tmp_path):
    """What a run left: the results, the profile, and which files."""
    place = tmp_path / "place"
    with FeatureHistory(place / "p") as profile:
        stored = [entry.photo for entry in profile.entries()]
    return (place / "r.csv").read_text(), stored, sorted(file.name for file in place.iterdir())


def stored_in_work(tmp_path):
    path = tmp_path / "place" / "r.csv.unfinished"
    if not path.exists():
        return set()
    with FeatureHistory(path, 1 << 62, 1 << 62) as work:
        return {entry.photo for entry in work.entries()}


@pytest.mark.slow
def test_a_killed_album_goes_on_where_it_was_and_ends_as_if_undisturbed(nursery, folder, tmp_path):
    begin(tmp_path)
    *moments, done = nursery.run()
    assert done == f"done {PHOTOS}"
    undisturbed = end(tmp_path)
    assert undisturbed[2] == ["p", "p.lock", "r.csv"]
    assert len(undisturbed[1]) == 16  # the album has displaced the photos that stood before it
    album = {identity(file) for file in find_photos([folder])}
    stops = ["encoding 0", "encoding 5", "encoding 17", "answering 0", "answering 9", "remembered 12",
             "written 0",
             "in place"]  # fmt: skip
    assert set(stops) <= set(moments)
    for stop in stops:
        begin(tmp_path)
        assert nursery.run(stop)[-1] == stop
        results = undisturbed[0] if stop == "in place" else "earlier"
        assert (tmp_path / "place" / "r.csv").read_text() == results
        kept = len(stored_in_work(tmp_path) & album)
        assert kept >= (int(stop.split()[1]) // 4 * 4 - 4 if "encoding" in stop else PHOTOS)
        assert nursery.run()[-1] == f"done {PHOTOS - kept}"
        assert end(tmp_path) == undisturbed, stop


@pytest.mark.slow
def test_an_album_killed_at_random_moments_ends_as_if_undisturbed(nursery, tmp_path):
    begin(tmp_path)
    start = time.perf_counter()
    nursery.run()
    whole_run = time.perf_counter() - start
    undisturbed, rng = end(tmp_path), random.Random(0)
    unfinished = 0
    for _ in range(40):
        begin(tmp_path)
        for _ in range(3):
            passed = nursery.run(delay=rng.uniform(0, whole_run))
            unfinished += not any(name.startswith("done") for name in passed)
            results = (tmp_path / "place" / "r.csv").read_text()
            assert results in ("earlier", undisturbed[0])
            if results != "earlier" and not (tmp_path / "place" / "r.csv.unfinished").exists():
                break  # killed after its last step; the next run would be another one, with the profile as it is now
        else:
            nursery.run()
        assert end(tmp_path)[:2] == undisturbed[:2]
    assert unfinished > 20, "the kills came after the end"


# ---- the command


def test_the_command_says_how_many_photos_failed(refocus, bundle, folder, tmp_path):
    out = tmp_path / "r.json"
    done = refocus("album", bundle.folder, folder, "--out", out, "--order", "name", "--top", 2, "--threads", 1)
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"{out}: 22 photos, 20 of them encoded by this run\n"
    broken, count = done.stderr.splitlines()
    assert broken.startswith(f"not used: {folder / '07 broken.png'} is damaged")
    assert count == "1 of 22 photos could not be used"
    assert out.stat().st_mode & 0o777 == 0o600
    assert [len(row["answer"]) for row in json.loads(out.read_text())].count(2) == 21


def test_a_mistyped_profile_is_refused_and_made_only_to_remember(refocus, bundle, folder, tmp_path):
    arguments = ("album", bundle.folder, folder, "--out", tmp_path / "r.csv", "--profiles", tmp_path / "profiles")
    done = refocus(*arguments, "--profile", "ana")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "--profile ana: no such profile" in done.stderr
    assert not (tmp_path / "profiles").exists()
    assert refocus(*arguments, "--profile", "anna", "--remember").returncode == 3
    with FeatureHistory(tmp_path / "profiles" / "anna.history.sqlite3") as profile:
        assert len(profile.entries()) == PHOTOS


def test_an_interrupted_command_says_how_to_go_on(bundle, tmp_path):
    content, folder, out = io.BytesIO(), tmp_path / "photos", tmp_path / "r.csv"
    Image.new("RGB", (3000, 3000)).save(content, "PNG")  # a small file that takes a while to decode
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.png").write_bytes(content.getvalue() + bytes([number]))
    command = [
        str(Path(sys.executable).parent / "refocus"),
        "album",
        bundle.folder,
        folder,
        "--out",
        out,
        "--batch",
        "1",
    ]
    # Whoever runs the tests in the background may have told this process, and so its children, to ignore interrupts.
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
    while process.poll() is None and not _count(tmp_path / "r.csv.unfinished"):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == f"refocus: interrupted; the same command resumes (progress is kept in {out}.unfinished)\n"
    assert 0 < _count(tmp_path / "r.csv.unfinished") < 60
    assert not out.exists()


def _count(path):
    if not path.exists():
        return 0
    with contextlib.suppress(HistoryError), FeatureHistory(path) as work:
        return len(work.entries())
    return 0


def test_an_album_by_several_workers_is_the_one_by_a_single_one(recognizer, folder):
    rows = [answered(recognizer, folder, f"{workers}.csv", workers=workers).rows for workers in (1, 3)]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_command_that_is_killed_leaves_no_worker_and_goes_on_to_the_same_results(refocus, bundle, tmp_path):
    content, folder = io.BytesIO(), tmp_path / "photos"
    Image.new("RGB", (2000, 2000)).save(content, "PNG")
    folder.mkdir()
    for number in range(32):
        (folder / f"{number}.png").write_bytes(content.getvalue() + bytes([number]))
    arguments = ["album", bundle.folder, folder, "--order", "name", "--threads", "1", "--out"]
    assert refocus(*arguments, tmp_path / "one.csv", "--workers", "1").returncode == 0
    command = [str(Path(sys.executable).parent / "refocus"), *map(str, arguments), str(tmp_path / "r.csv")]
    process = subprocess.Popen([*command, "--workers", "2", "--batch", "1"], stderr=subprocess.DEVNULL)
    while process.poll() is None and not _count(tmp_path / "r.csv.unfinished"):
        time.sleep(0.02)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) <= 2
    process.kill()
    process.wait()
    assert 0 < _count(tmp_path / "r.csv.unfinished") < 32
    late = time.monotonic() + 30
    while any(_runs(pid) for pid in children) and time.monotonic() < late:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in children)
    done = refocus(*arguments, tmp_path / "r.csv", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.csv").read_text() == (tmp_path / "one.csv").read_text()


def _runs(pid):
    with contextlib.suppress(OSError):
        return "photos.workers" in Path(f"/proc/{pid}/cmdline").read_text()
    return False
