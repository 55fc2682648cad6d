"""The programs of examples/ do what they say, with a small bundle and real processes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bundles and photos of the fixtures."""
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(ROOT / "tests" / "fixtures" / "0.1.0" / "files.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    """The address of a camera server."""
    profiles = tmp_path_factory.mktemp("profiles")
    command = [sys.executable, EXAMPLES / "camera_server.py", files / "bundles" / "window", "--profiles", profiles]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process.stdout.readline().strip()
        process.terminate()


def post(address, path, content):
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, content), timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_posted_photos_are_recognised_with_each_persons_own_history(server, files):
    photos = sorted((files / "bundles" / "window" / "self-test").glob("*.png"))
    first = post(server, "/recognise?profile=anna", photos[0].read_bytes())
    assert first[0] == 200
    assert first[1]["trust"] == 0  # no history yet
    for photo in photos[1:4]:
        assert post(server, "/recognise?profile=anna", photo.read_bytes())[0] == 200
    _, again = post(server, "/recognise?profile=ben", photos[0].read_bytes())
    assert again["top"] == first[1]["top"]
    assert again["profile"] == "ben"


@pytest.mark.parametrize(
    ("path", "content", "status", "word"),
    [
        ("/recognise?profile=anna", b"no photo", 422, "photo"),
        ("/recognise?profile=../anna", b"x", 400, "profile"),
        ("/recognise", b"x", 400, "profile"),
        ("/recognise?profile=anna", b"", 413, "body"),
        ("/another", b"x", 404, "/recognise"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(path, content, status, word, server):
    found = post(server, path, content)
    assert found[0] == status
    assert word in found[1]["error"]


@pytest.fixture
def job(files, tmp_path):
    """Runs the batch job over ``photos``; returns the finished process."""

    def run():
        words = [EXAMPLES / "batch_job.py", files / "bundles" / "window", tmp_path / "photos"]
        where = ["--out", tmp_path / "answers.jsonl", "--profiles", tmp_path / "profiles"]
        return subprocess.run([sys.executable, *words, *where], capture_output=True, text=True, timeout=300)

    return run


def put(photos, *places):
    """Copies a photo to each place."""
    for photo, place in zip(photos, places, strict=False):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(photo.read_bytes())


@pytest.fixture
def photos(files):
    return sorted((files / "bundles" / "window" / "self-test").glob("*.png"))


def test_the_batch_job_goes_on_where_it_was_killed_and_names_damaged_photos(job, photos, tmp_path):
    for person in ("anna", "ben"):
        put(photos, *(tmp_path / "photos" / person / photo.name for photo in photos[:3]))
    (tmp_path / "photos" / "ben" / "99.png").write_bytes(b"no photo")
    out = tmp_path / "answers.jsonl"
    done = job()
    assert done.returncode == 3, done.stderr
    whole = out.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert len(rows) == 7
    assert [row["photo"] for row in rows if "error" in row] == ["ben/99.png"]
    out.write_text(whole[:-20])  # as a kill in the middle of the last line leaves it
    assert job().returncode == 3
    assert [json.loads(line)["photo"] for line in out.read_text().splitlines()] == [row["photo"] for row in rows]


def test_the_batch_job_takes_folders_in_folders_and_any_name_of_a_person(job, photos, tmp_path):
    names = ["anna/cats/1.png", "anna/dogs/old/2.png", "Zoë Müller/line\u2028end.png", f"{'x' * 90}/4.png"]
    put(photos, *(tmp_path / "photos" / name for name in names))
    done = job()
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {row["photo"] for row in rows} == set(names)
    profiles = {row["profile"] for row in rows}
    assert len(profiles) == 3
    assert "anna" in profiles
    found = {path.name.removesuffix(".history.sqlite3") for path in (tmp_path / "profiles").glob("*.sqlite3")}
    assert found == profiles
    again = job()
    assert (again.returncode, again.stderr) == (0, "")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4


def test_a_person_whose_history_cannot_be_used_does_not_end_the_batch_job(job, photos, tmp_path):
    put(photos, *(tmp_path / "photos" / name for name in ("anna/1.png", "ben/1.png", "nobodys.png")))
    (tmp_path / "profiles" / "anna.history.sqlite3").mkdir(parents=True)
    done = job()
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert f"{tmp_path / 'photos' / 'nobodys.png'} is in no person's folder" in done.stderr
    assert "\nanna: " in done.stderr
    (line,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert json.loads(line)["photo"] == "ben/1.png"


@pytest.mark.parametrize(("name", "word"), [("1.png", "no person's folder"), ("anna/1.txt", "no photo in it")])
def test_a_batch_job_that_finds_nobodys_photos_says_so(name, word, job, photos, tmp_path):
    put(photos, tmp_path / "photos" / name)
    done = job()
    assert done.returncode == 1
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_dealt_people_meet_a_few_classes_and_share_no_photo_and_no_split(tmp_path):
    rows = [
        {"file_name": f"{split}/{label}-{number}.jpg", "label": f"class {label}", "split": split, "name": "a, b"}
        for split, count in (("train", 11), ("val", 3), ("test", 25))
        for label in range(8)
        for number in range(count)
    ]
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [*rows[0]])
        table.writeheader()
        table.writerows(rows)
        archive.writestr("metadata.csv", text.getvalue())
        for row in rows:
            archive.writestr(row["file_name"], row["file_name"])
    command = [sys.executable, EXAMPLES / "shoppers.py", tmp_path / "photos.zip", tmp_path / "people.zip"]
    done = subprocess.run([*command, "--classes", "3", "--photos", "10"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "people.zip") as archive:
        dealt = list(csv.DictReader(io.TextIOWrapper(archive.open("metadata.csv"), encoding="utf-8", newline="")))
        assert all(archive.read(row["file_name"]).decode() == row["file_name"] for row in dealt)
    assert len({row["file_name"] for row in dealt}) == len(dealt)
    assert {row["split"] for row in dealt} == {"train", "val", "test"}
    assert sum(row["split"] != "test" for row in dealt) == 8 * (11 + 3), "nothing to learn from is left out"
    people = {row["client"] for row in dealt if row["split"] == "test"}
    assert len(people) >= 15
    for person in people:
        own = [row for row in dealt if row["client"] == person]
        assert len(own) == 10
        assert {row["split"] for row in own} == {"test"}
        assert len({row["label"] for row in own}) <= 3
