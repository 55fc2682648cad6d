"""A settings file says what a command does; everything that is wrong with it is said at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.settings import read_settings, settings_toml


@dataclass(frozen=True)
class Recipe:
    epochs: int = 100
    rate: float = 0.01
    decay: float | None = None


class Data(msgspec.Struct, frozen=True):
    source: str = "glyphs"
    shares: dict[str, float] = msgspec.field(default_factory=lambda: {"train": 0.6})


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (0,)
    recipe: Recipe = field(default_factory=Recipe)
    data: Data = field(default_factory=Data)


def test_what_a_file_leaves_out_keeps_its_default(tmp_path):
    (tmp_path / "run.toml").write_text("seeds = [1, 2]\n[recipe]\nepochs = 7\n")
    read = read_settings(Settings(), tmp_path / "run.toml", ["recipe.rate=0.5", "data.source=my photos"])
    assert read == Settings((1, 2), Recipe(7, 0.5), Data("my photos"))


def test_settings_come_back_from_their_own_toml(tmp_path):
    settings = Settings((3, 4), Recipe(5, 1e-3, 0.1), Data("a/b", {"train": 0.5, "test": 0.5}))
    (tmp_path / "run.toml").write_text(settings_toml(settings))
    assert read_settings(Settings(), tmp_path / "run.toml") == settings
    assert "decay" not in settings_toml(Settings())  # None


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path):
    (tmp_path / "run.toml").write_text("seeds = 'x'\n\n[recipe]\nepocs = 7\nrate = 'fast'\n[nothing]\na = 1\n")
    with pytest.raises(UsageError) as caught:
        read_settings(Settings(), tmp_path / "run.toml")
    text = str(caught.value)
    for part in (
        "seeds = 'x' (line 1)",
        "recipe.epocs is unknown (line 4); did you mean epochs?",
        "recipe.rate = 'fast' (line 5)",
        "nothing is unknown (line 6); known: seeds, recipe, data",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("recipe.epochs", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("recipe.epochs=many", "recipe.epochs = 'many'"),
        ("epochs=3", "epochs is unknown; did you mean recipe.epochs?"),
        ("data.seeds=3", "data.seeds is unknown; did you mean seeds?"),
        ("seeds.first=3", "seeds"),
        ("recipe=3", "recipe"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        read_settings(Settings(), None, [change])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a = ", "is not valid TOML"), (b"\xff\xfe", "expected text in UTF-8"), (None, "cannot be read")],
)
def test_a_file_that_is_no_toml_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_settings(Settings(), tmp_path / "run.toml")
