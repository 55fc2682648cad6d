"""The review of prose: a draw that repeats, and phrases that no docstring, error or help text has."""

from __future__ import annotations

import re

import pytest

from tests.prose import KINDS, draw, texts

# Phrase -> what to write in its place.
REPLACED = {
    r"\bmerely\b": "only",
    r"\banew\b": "again",
    r"\bgoes? on where (it|they) (was|were)\b": "resumes",
    r"\bnobody has any\b": "None disables it",
    r"(^|: )mend\b": "fix",
    r"\bwhat lies there\b": "existing files",
    r"\bto be had\b": "available",
    r"\bthis executorch has not\b": "this ExecuTorch build lacks",
    r"\bsquared way\b": "squared distance",
}


@pytest.fixture(scope="module")
def everything():
    return texts()


def test_a_seed_gives_one_draw_and_another_seed_another():
    first = draw(28, 10)
    assert draw(28, 10) == first
    assert draw(29, 10) != first
    assert [sum(text.kind == kind for text in first) for kind in KINDS] == [10, 10, 10]


def test_a_rewritten_text_keeps_its_place_in_the_draw(tmp_path):
    (tmp_path / "edge").mkdir()

    def drawn(text):
        functions = [f'def f{n}():\n    """{text} {n}"""\n    raise ValueError("{text} {n}")\n' for n in range(20)]
        (tmp_path / "edge" / "a.py").write_text("\n\n".join(functions))
        return draw(1, 5, tmp_path)

    before, after = drawn("An old text"), drawn("A new one,")
    assert [text.place for text in before] == [text.place for text in after]
    assert [text.text.rsplit(" ", 1)[1] for text in before] == [text.text.rsplit(" ", 1)[1] for text in after]
    assert not {text.text for text in before} & {text.text for text in after}


@pytest.mark.parametrize("phrase", REPLACED)
def test_no_text_has_a_phrase_that_has_a_standard_term(phrase, everything):
    found = [f"{text.place}: {text.text}" for text in everything if re.search(phrase, text.text)]
    assert found == [], f"write: {REPLACED[phrase]}"
