"""Recognizers of releases that stay loaded: the one that serves, and the one that people move to or from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.device_state import Slot


class LoadedReleases:
    """Recognizers of releases; when there are too many, the least recently used one is closed.

    Args:
        load: loads a release.
        most: recognizers kept. One that was returned is good until as many others were asked for.
    """

    def __init__(self, load: Callable[[Slot], Recognizer], most: int) -> None:
        self._load, self._most = load, most
        self._loaded: OrderedDict[str, Recognizer] = OrderedDict()

    def get(self, slot: Slot) -> Recognizer:
        """The recognizer of a release.

        Raises:
            BundleError, RuntimeUnavailable: it does not load; those that are loaded stay so.
        """
        if slot.identity not in self._loaded:
            self._loaded[slot.identity] = self._load(slot)
        self._loaded.move_to_end(slot.identity)
        while len(self._loaded) > self._most:
            self._loaded.popitem(last=False)[1].close()
        return self._loaded[slot.identity]

    def leave(self) -> None:
        """Closes every profile; the programs stay loaded."""
        for model in self._loaded.values():
            model.leave()

    def close(self) -> None:
        """Closes every recognizer."""
        while self._loaded:
            self._loaded.popitem()[1].close()
