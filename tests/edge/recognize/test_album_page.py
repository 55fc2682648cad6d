"""An album in a browser: nothing is asked of a network, no name of a file becomes markup, and everything is there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from refocus.edge.recognize.album import answer_album, find_photos
from refocus.edge.recognize.album_page import Row, album_page
from refocus.edge.recognize.recognizer import Displayed, Recognizer

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&.png"


@pytest.fixture(scope="module")
def album(bundle, stream, tmp_path_factory):
    """Rows of a real album of six photos and a broken one, and their page."""
    folder = tmp_path_factory.mktemp("album")
    (folder / "photos").mkdir()
    for number, content in enumerate(stream[:6]):
        (folder / "photos" / f"{number}.png").write_bytes(content)
    (folder / "photos" / "broken.png").write_bytes(stream[0][:200])
    with Recognizer(bundle, threads=1) as recognizer:
        report = answer_album(
            recognizer, find_photos([folder / "photos"]), folder / "r.json", workers=1, html=folder / "r.html"
        )
    return report, folder


def details(page):
    return json.loads(re.search(r'<script type="application/json" id="details">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_asks_no_network_and_allows_its_own_script_alone(album):
    page = (album[1] / "r.html").read_text()
    assert not re.findall(r"https?:|//\w+\.", re.sub(r"data:image/jpeg;base64,[\w+/=]+", "", page))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]
    assert not re.findall(r"<[^>]+\son\w+=", page), "the policy forbids handlers in attributes"


def test_every_photo_has_a_thumbnail_its_answers_and_the_photos_it_rests_on(album):
    report, folder = album
    page = (folder / "r.html").read_text()
    found = details(page)
    assert len(found) == len(report.rows) == 7
    assert page.count('src="data:image/jpeg;base64,') == 6
    for row, shown in zip(report.rows, found, strict=True):
        assert shown["answer"] == [list(pair) for pair in row.answer]
        assert shown["alone"] == [list(pair) for pair in row.alone]
        assert shown["trust"] == row.trust
        for (place, name, weight), (wanted, heaviness) in zip(shown["rests_on"], row.rests_on, strict=True):
            assert (name, weight) == (wanted, heaviness)
            assert report.rows[place].file == name
    (broken,) = (shown for shown in found if shown["error"])
    assert broken["file"].endswith("broken.png")


def test_the_table_holds_the_answer_of_the_photo_alone(album, bundle, stream):
    report, folder = album
    rows = json.loads((folder / "r.json").read_text())
    with Recognizer(bundle, threads=1) as recognizer:
        alone = recognizer.recognize(stream[0], remember=False)
    assert rows[0]["alone"][0][0] == alone.label == report.rows[0].alone[0][0]


def test_names_and_labels_become_no_markup():
    row = Row(HOSTILE, (Displayed(HOSTILE, 0.9, 0.9),), 0.5, ((HOSTILE, 0.2),), alone=((HOSTILE, 0.4),))
    page = album_page(HOSTILE, [row], ((HOSTILE, 0.5),))
    assert "<img src=x" not in page
    assert details(page)[0]["file"] == HOSTILE
    assert page.count("</script>") == 2


def test_an_answer_that_the_history_changed_is_marked(tmp_path):
    Image.new("RGB", (2000, 1000), "red").save(tmp_path / "large.jpg")
    changed = Row(str(tmp_path / "large.jpg"), (Displayed("cat", 0.9, 0.9),), 0.5, alone=(("dog", 0.6),))
    same = Row(str(tmp_path / "gone.jpg"), (Displayed("cat", 0.9, 0.9),), 0.5, alone=(("cat", 0.6),))
    page = album_page("album", [changed, same])
    assert re.findall(r'data-kind="(\w+)" id="p\d"', page) == ["changed", "same"]
    assert "the other photos changed the best label of 1" in page
    assert page.count("<img") == 1, "a photo that is gone has an empty frame"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected --out FILE.csv, --out FILE.json or --html FILE.html"),
        (("--html", "page.htm"), "expected a file name that ends in .html"),
    ],
)
def test_a_command_that_would_write_nothing_is_refused(
    refocus, bundle, photo_file, assert_one_clear_line, arguments, message
):
    assert_one_clear_line(refocus("album", bundle.folder, photo_file, *arguments), message)


def test_the_command_writes_a_page_alone(refocus, bundle, photo_file, tmp_path):
    done = refocus("album", bundle.folder, photo_file, "--html", tmp_path / "page.html", "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path != photo_file] == ["page.html"]
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_an_unknown_photo_is_marked_and_keeps_its_best_guess(tmp_path):
    unknown = Row(str(tmp_path / "a.jpg"), (Displayed("modem", 0.3, 0.3),), 0.5, alone=(("modem", 0.3),), known=False)
    known = Row(str(tmp_path / "b.jpg"), (Displayed("cat", 0.9, 0.9),), 0.5, alone=(("cat", 0.9),), known=True)
    page = album_page("album", [unknown, known])
    assert re.findall(r'data-kind="([\w ]+)" id="p\d"', page) == ["same unknown", "same"]
    assert "unknown, perhaps modem" in page
    assert "1 look as if they show none of the labels" in page
    assert "show none of the labels" not in album_page("album", [replace(known, known=None)])
