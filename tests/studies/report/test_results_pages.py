"""The results pages: generated from committed documents, small enough to read, and complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refocus.cloud_train.errors import DataError
from studies.report.negatives import negatives
from studies.report.pages import STUDIES
from studies.report.results_page import LONG, PART, _without_long_table, results_pages, write_results_pages
from studies.report.sections import SCHEMAS
from studies.report.topics import OF_KIND, OF_STUDY, PAPERS, TOPICS, page_of_paper, topic_of

DOCS = Path(__file__).parents[3] / "docs"
LARGEST = 40_000  # bytes of a page


@pytest.fixture(scope="module")
def pages():
    """The published pages, made once; their pictures are not drawn."""
    return results_pages(DOCS / "results")


def test_committed_pages_are_generated_from_their_documents(pages):
    assert (DOCS / "results.md").read_text(encoding="utf-8") == pages.front
    for name, text in pages.topics.items():
        assert (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8") == text
    assert {path.stem for path in (DOCS / "results").glob("*.md")} == pages.topics.keys(), "a page of an earlier topic"


def test_every_picture_of_a_page_is_committed(pages):
    assert len(pages.pictures) > 40
    for name in pages.pictures:
        assert (DOCS / "pictures" / name).is_file()
        assert f"(../pictures/{name})" in pages.text


@pytest.mark.slow
def test_every_picture_of_a_page_can_be_drawn(pages):
    for name, draw in pages.pictures.items():
        assert draw().startswith(b"\x89PNG"), name


def test_no_page_is_larger_than_40_kb(pages):
    for name, text in pages.topics.items():
        assert len(text.encode()) <= LARGEST, f"split {name} in studies/report/topics.py"


def test_the_front_page_is_no_longer_than_60_lines_and_has_every_topic(pages):
    assert len(pages.front.splitlines()) <= 60
    for page in TOPICS:
        assert f"(results/{page}.md)" in pages.front


def test_every_document_stands_on_one_page(pages):
    for path in (DOCS / "results").glob("*.json"):
        on = [
            page
            for page, text in pages.topics.items()
            if f"[{path.stem}]({path.name})" in text.split("## Documents")[-1]
        ]
        assert len(on) == 1, path.name


def test_negative_results_come_first_on_every_page(pages):
    assert pages.front.index("## Negative results") == pages.front.index("## ")
    for page in TOPICS:
        assert pages.topics[page].index("## Negative results") == pages.topics[page].index("## ")


def test_a_figure_from_before_a_fix_is_not_on_the_front_page_without_that(pages):
    lines = pages.front.splitlines()
    for name, said in (("real-photos-quantised", "from before people were counted"), ("peers-", "rows are not valid")):
        assert all(said in line for line in lines if f"[{name}" in line)
    stream = json.loads((DOCS / "results" / "stream.json").read_text())
    quoted = [line for line in lines if "([stream]" in line]
    assert len(quoted) > 1
    assert all(("intervals over people, with these photos" in line) == ("intervals" not in stream) for line in quoted)


def test_every_study_and_kind_of_document_has_a_page():
    assert OF_STUDY.keys() == STUDIES.keys()
    assert OF_KIND.keys() == SCHEMAS.keys() - {"study"}
    assert {*OF_STUDY.values(), *OF_KIND.values(), *PAPERS.values()} < TOPICS.keys()


def test_a_document_or_paper_without_a_page_is_refused():
    with pytest.raises(
        DataError, match=r"no page is for 'other' of x; add it to OF_STUDY in studies/report/topics\.py"
    ):
        topic_of("x", "study", {"study": "other"})
    with pytest.raises(DataError, match="no page is for 'Other' of the programme; add it to PAPERS"):
        page_of_paper("Other Table 1")


def test_a_long_table_loses_no_row_and_every_part_is_a_table():
    rows = [f"| {number} | {'x' * 100} |" for number in range(1000)]
    text = "\n".join(["## long", "before", "", "| a | b |", "|---|---|", *rows, "", "| c |", "|---|", "| short |", ""])
    assert len(text) > LONG
    short, parts = _without_long_table(text)
    assert "| short |" in short
    assert [row for part in parts for row in part.splitlines()[2:]] == rows
    assert all(part.startswith("| a | b |\n|---|---|\n") and len(part) < PART + 100 for part in parts)


def test_a_loss_is_a_negative_result_and_a_gain_is_not():
    def row(name, low, high):
        return {"name": name, "gain": {"mean": (low + high) / 2, "low": low, "high": high}}

    rows = [row("lost", -0.2, -0.1), row("won", 0.1, 0.2), row("unclear", -0.1, 0.1), row("control: lost", -0.2, -0.1)]
    (found,) = negatives({"study": "ablations", "rows": rows})
    assert "lost -15.0" in found.text
    assert not any(name in found.text for name in ("won", "unclear", "control"))


def test_text_is_written_without_pictures(tmp_path):
    (tmp_path / "results").mkdir()
    for name in ("stream", "trade-off"):
        content = (DOCS / "results" / f"{name}.json").read_bytes()
        (tmp_path / "results" / f"{name}.json").write_bytes(content)
    write_results_pages(tmp_path / "results", tmp_path / "results.md", draw=False)
    assert "trade-off.png" in (tmp_path / "results" / "class-shares.md").read_text()
    assert not (tmp_path / "pictures").exists()
    assert "[part 2](stream-rows-2.md)" in (tmp_path / "results" / "class-shares.md").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not a result document"),
        ('{"schema_version": 99}', "has schema 99"),
        ('{"schema_version": "3"}', "has schema '3'"),
        ('{"schema_version": 3, "accuracy": {"original": {}}}', r"x\.json is damaged, or no document of this refocus"),
        ('{"schema_version": 2, "study": "ways"}', r"x\.json is damaged.*KeyError"),
        ('{"schema_version": 2, "study": "other"}', "no page is for 'other' of x; add it to OF_STUDY"),
    ],
)
def test_a_document_that_is_no_result_is_refused(content, message, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=message):
        results_pages(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no result documents"):
        results_pages(tmp_path)
