"""Recipes by name: settings to start from, for the photos that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from refocus.cloud_train.errors import UsageError

T = TypeVar("T")
Recipe = Callable[[Mapping[str, Any]], T]
Seeds = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]


def named(recipes: Mapping[str, Recipe[T]], name: str, given: Mapping[str, Any]) -> T:
    """The settings of a recipe.

    Args:
        given: what is asked for besides; recipes differ between glyphs and photos.

    Raises:
        UsageError: there is no such recipe.
    """
    if name not in recipes:
        raise UsageError(f"--recipe {name}: expected {' or '.join(recipes)}")
    return recipes[name](given)


def of_glyphs(section: Mapping[str, Any]) -> bool:
    """Whether the section that names the photos asks for the embedded letters, as by default."""
    return section.get("source", "glyphs") == "glyphs"
