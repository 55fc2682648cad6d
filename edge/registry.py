"""Tables of parts by name that installed packages can add to, through an entry-point group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

V = TypeVar("V")


class Registry(dict[str, V]):
    """Parts by name: those of Refocus, and those of other packages.

    Installed packages are searched only for a name that the table lacks, so known names cost nothing. A part of
    another package stays in the table once it was found. Iteration covers what the table holds.

    Args:
        own: the parts of Refocus. A part of another package cannot replace one of them.
        group: entry-point group, as ``refocus.runtimes``.
        made_of: entry point -> the table's value. It may import the other package.
    """

    def __init__(self, own: dict[str, V], group: str, made_of: Callable[[EntryPoint], V]) -> None:
        super().__init__(own)
        self.group, self._made_of = group, made_of

    def __missing__(self, name: str) -> V:
        from importlib.metadata import entry_points

        for entry in entry_points(group=self.group, name=name):
            self[name] = self._made_of(entry)
            return self[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        try:
            self[str(name)]
        except KeyError:
            return False
        return True
