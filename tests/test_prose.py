"""The texts that are collected: their words with a replacement, and a draw that repeats."""

from __future__ import annotations

import pytest

from tests.prose import KINDS, REPLACED, ROOT, Text, draw, texts, words


def test_a_seed_gives_one_draw_and_another_seed_another():
    among = texts()
    first = draw(28, 10, among)
    assert draw(28, 10, among) == first
    assert draw(29, 10, among) != first
    assert [sum(text.kind == kind for text in first) for kind in KINDS] == [10, 10, 10]


def test_a_rewritten_text_keeps_its_place_in_the_draw(tmp_path):
    (tmp_path / "edge").mkdir()

    def drawn(text):
        functions = [f'def f{n}():\n    """{text} {n}"""\n    raise ValueError("{text} {n}")\n' for n in range(20)]
        (tmp_path / "edge" / "a.py").write_text("\n\n".join(functions))
        return draw(1, 5, texts(tmp_path))

    before, after = drawn("An old text"), drawn("A new one,")
    assert [text.place for text in before] == [text.place for text in after]
    assert [text.text.rsplit(" ", 1)[1] for text in before] == [text.text.rsplit(" ", 1)[1] for text in after]
    assert not {text.text for text in before} & {text.text for text in after}


def found(text):
    return [(line, word) for line, word, _ in words(Text("page", "a.md", "", 1, text))]


@pytest.mark.parametrize("word", [word for forms in REPLACED for word in forms.split("|")])
def test_no_word_is_missed_in_capitals_or_over_two_lines(word):
    written = word.capitalize().replace(" ", "\n  ", 1)
    assert [word for _, word in found(f"A first line.\n{written}, and more.")] == [word.capitalize()]


@pytest.mark.parametrize(
    "text",
    [
        "besides, retold, amended and prejudged",
        "the field `judged` and ``told``",
        'the paper "Nobody Is Told"',
        "```console\n$ told beside\n```",
        "https://example.org/told",
        "{self.told} bytes",
    ],
)
def test_code_titles_and_longer_words_are_no_finding(text):
    assert found(text) == []


def test_text_around_code_and_titles_is_still_read():
    assert found('a `b` told\n```\ncode\n```\nbeside "a title", anew') == [(1, "told"), (5, "beside"), (5, "anew")]


def test_the_page_lists_every_word_with_its_replacement():
    page = (ROOT / "docs" / "style.md").read_text(encoding="utf-8")
    rows = [f"| {', '.join(f'`{word}`' for word in words.split('|'))} | {REPLACED[words]} |" for words in REPLACED]
    assert [row for row in rows if row not in page] == []


def test_every_kind_of_text_is_collected_with_its_line(tmp_path):
    (tmp_path / "edge").mkdir()
    source = '''"""A module."""

class A:
    """A class."""

    def _b(self):
        """A private method."""
        # A comment
        # of two lines.
        if True:
            raise ValueError(f"the {value} is" + " wrong")


option("--flag", help="a flag")
'''
    (tmp_path / "edge" / "a.py").write_text(source)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\nNew.\n\n## 0.1.0\nOld.\n")
    assert [(text.kind, text.name, text.line, text.text) for text in texts(tmp_path)] == [
        ("page", "", 1, "# Changelog\n\n## Unreleased\nNew.\n"),
        ("docstring", "", 1, "A module."),
        ("docstring", "A", 4, "A class."),
        ("private", "A._b", 7, "A private method."),
        ("error", "ValueError", 11, "the {value} is wrong"),
        ("help", "--flag", 14, "a flag"),
        ("comment", "", 8, " A comment\n of two lines."),
    ]
