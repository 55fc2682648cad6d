"""Training functions of settings, which ``refocus train`` calls.

A settings object holds everything that a run depends on. Its method ``named`` starts from a recipe, as ``--recipe``
does: ``IciiaSettings.named("paper", {"data": {"source": "photos.zip"}})``. :mod:`refocus.cloud_train.settings` reads
and writes settings as TOML.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refocus.cloud_train.train.clients import FederatedSettings, PromptSettings, train_federated, train_prompt
    from refocus.cloud_train.train.iciia import IciiaSettings, train_iciia
    from refocus.cloud_train.train.taper import TaperSettings, train_taper

__all__ = [
    "FederatedSettings",
    "IciiaSettings",
    "PromptSettings",
    "TaperSettings",
    "train_federated",
    "train_iciia",
    "train_prompt",
    "train_taper",
]
_FOLDERS = {"federated": "clients", "prompt": "clients"}  # others have a module of the same name


def __getattr__(name: str) -> Any:
    """Import a trainer on first use, so that methods load separately."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    method = name.removeprefix("train_").removesuffix("Settings").lower()
    return getattr(import_module(f"{__name__}.{_FOLDERS.get(method, method)}"), name)
