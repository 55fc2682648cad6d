"""Recipes by name: settings to start from, for the photos that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.settings import MOST_SEED, changed_by

T = TypeVar("T")
Settings = TypeVar("Settings", bound="OfRecipes")
Recipe = Callable[[Mapping[str, Any]], T]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=MOST_SEED + 1)]
Seeds = Annotated[tuple[Seed, ...], msgspec.Meta(min_length=1)]


class OfRecipes:
    """Base of settings that start from a recipe.

    Attributes:
        RECIPES: by name; each makes settings for the photos that its argument names.
    """

    RECIPES: ClassVar[Mapping[str, Recipe[Any]]] = {}

    def __post_init__(self) -> None:
        seeds: Sequence[int] = getattr(self, "seeds", ())
        if len(set(seeds)) < len(seeds):
            raise UsageError(f"seeds {list(seeds)}: expected each once")

    @classmethod
    def start(cls: type[Settings], name: str = "default", given: Mapping[str, Any] | None = None) -> Settings:
        """Settings of a recipe, before what is given is put in.

        Args:
            given: nested tables of what is asked for besides; recipes differ between glyphs and photos.

        Raises:
            UsageError: there is no such recipe.
        """
        if name not in cls.RECIPES:
            raise UsageError(f"--recipe {name}: expected {' or '.join(cls.RECIPES)}")
        start: Settings = cls.RECIPES[name](given or {})
        return start

    @classmethod
    def named(cls: type[Settings], name: str = "default", given: Mapping[str, Any] | None = None) -> Settings:
        """Settings of a recipe with the given ones in their places.

        Args:
            given: nested tables, as ``{"data": {"source": "photos.zip"}, "seeds": [0, 1]}``.

        Raises:
            UsageError: there is no such recipe; or all unknown keys and all values of another type.
        """
        return changed_by(cls.start(name, given), given or {}, "settings")


def section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of what is given; empty where there is none, or a value stands in its place, which the check refuses."""
    found = given.get(name)
    return found if isinstance(found, Mapping) else {}


def of_glyphs(table: Mapping[str, Any]) -> bool:
    """Whether the table that names the photos asks for the embedded letters, as by default."""
    return table.get("source", "glyphs") == "glyphs"


def of_drawn_clips(table: Mapping[str, Any]) -> bool:
    """Whether it asks for the embedded clips."""
    return table.get("source") == "moving-glyphs"
