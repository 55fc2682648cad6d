"""Settings by which a device runs its releases, and the recognizers of releases that stay loaded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer, profile_name
from refocus.edge.update.canary import Limits
from refocus.edge.update.device_state import Slot, Slots


@dataclass(frozen=True)
class Settings:
    """How this device runs a bundle.

    Attributes:
        profiles: folder of the people's histories.
        isolated: whether a release is tested in a child process; False where an application embeds Python and cannot
            start one. A release that crashes then takes the application with it, and is postponed.
    """

    profiles: Path
    runtime: str = "onnxruntime"
    precision: str = "fp32"
    threads: int = 0
    limits: Limits = field(default_factory=Limits)
    isolated: bool = True

    @property
    def target(self) -> str:
        return f"{self.runtime}:{self.precision}"

    def recognizer(self, bundle: Bundle, weights: PersonalWeightStore | None = None) -> Recognizer:
        """The programs of a verified bundle, loaded, for nobody yet.

        Args:
            weights: of the people whom it will serve; None: everybody is served alike.
        """
        return Recognizer(bundle, None, self.runtime, self.precision, self.threads, weights=weights)


class LoadedReleases:
    """Recognizers of releases; when there are too many, the least recently used one is closed.

    Args:
        slots, settings: where the releases are, and how they run.
        most: recognizers kept. One that was returned is good until as many others were asked for.
    """

    def __init__(self, slots: Slots, settings: Settings, most: int) -> None:
        self._slots, self._settings, self._most = slots, settings, most
        self._loaded: OrderedDict[str, Recognizer] = OrderedDict()

    def get(self, slot: Slot) -> Recognizer:
        """The recognizer of a release.

        Raises:
            BundleError, RuntimeUnavailable: it does not load; those that are loaded stay so.
            PersonalWeightsError: the folder of personal weights cannot be read.
        """
        if slot.identity not in self._loaded:
            bundle = load_bundle(self._slots.path(slot))
            self._loaded[slot.identity] = self._settings.recognizer(bundle, self._weights)
        self._loaded.move_to_end(slot.identity)
        while len(self._loaded) > self._most:
            self._loaded.popitem(last=False)[1].close()
        return self._loaded[slot.identity]

    def encoding(self, slot: Slot, profile: Path) -> Recognizer:
        """As :meth:`get`, with one person's weights; their history stays closed.

        Raises:
            PersonalWeightsError: the weights are damaged or do not fit; damaged ones are set aside.
        """
        model = self.get(slot)
        model.encode_as(profile if self._has_weights(profile) else None)
        return model

    def of(self, slot: Slot, profile: Path) -> Slot:
        """A release as it is for one person: its feature space is that of their weights, where they have any for it and
        it loads.

        Raises:
            PersonalWeightsError: as :meth:`encoding`.
        """
        if self._has_weights(profile):
            try:
                return msgspec.structs.replace(slot, space=self.encoding(slot, profile).space)
            except (BundleError, RuntimeUnavailable):
                pass
        return slot

    @property
    def personal(self) -> bool:
        """Whether anybody ever had weights of their own, so that people may have other feature spaces."""
        return self._weights is not None

    @cached_property
    def _weights(self) -> PersonalWeightStore | None:
        return PersonalWeightStore.beside(self._settings.profiles)

    def _has_weights(self, profile: Path) -> bool:
        return self._weights is not None and self._weights.holds(profile_name(profile))

    def leave(self) -> None:
        """Closes every profile; the programs stay loaded."""
        for model in self._loaded.values():
            model.leave()

    def close(self) -> None:
        """Closes every recognizer."""
        while self._loaded:
            self._loaded.popitem()[1].close()
