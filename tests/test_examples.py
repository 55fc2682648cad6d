"""The programs of examples/ do what they say, with a small bundle and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
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


def test_the_batch_job_goes_on_where_it_was_killed_and_names_damaged_photos(files, tmp_path):
    photos = sorted((files / "bundles" / "window" / "self-test").glob("*.png"))
    for person in ("anna", "ben"):
        (tmp_path / "photos" / person).mkdir(parents=True)
        for photo in photos[:3]:
            (tmp_path / "photos" / person / photo.name).write_bytes(photo.read_bytes())
    (tmp_path / "photos" / "ben" / "99.png").write_bytes(b"no photo")
    out = tmp_path / "answers.jsonl"
    command = [
        sys.executable,
        EXAMPLES / "batch_job.py",
        files / "bundles" / "window",
        tmp_path / "photos",
        "--out",
        out,
    ]
    command += ["--profiles", tmp_path / "profiles"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    whole = out.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert len(rows) == 7
    assert [row["photo"] for row in rows if "error" in row] == ["ben/99.png"]
    out.write_text(whole[:-20])  # as a kill in the middle of the last line leaves it
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 3
    assert [json.loads(line)["photo"] for line in out.read_text().splitlines()] == [row["photo"] for row in rows]
