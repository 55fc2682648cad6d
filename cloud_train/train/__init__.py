"""Training as functions of settings: what ``refocus train`` runs.

A settings object holds everything that a run depends on. Its method ``named`` starts from a recipe, as ``--recipe``
does: ``IciiaSettings.named("paper", {"data": {"source": "photos.zip"}})``. :mod:`refocus.cloud_train.settings` reads
and writes settings as TOML.
"""

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
