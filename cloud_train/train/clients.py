"""``refocus train federated`` and ``refocus train prompt`` as functions: clients or groups with photos of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from refocus.cloud_train.federated.client import Recipe as RoundsRecipe
from refocus.cloud_train.federated.client_data import FEWEST
from refocus.cloud_train.federated.delivery.deliver import deliver
from refocus.cloud_train.federated.methods import ALWAYS, METHODS
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates, allows_towers, prompts_recipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.report.report import write_results
from refocus.cloud_train.runs.folder import note_settings, starting
from refocus.cloud_train.settings import Positive, checked, part_of
from refocus.cloud_train.studies.federated import study_federated
from refocus.cloud_train.train.recipes import OfRecipes, Seeds, of_glyphs

Settings = TypeVar("Settings", bound=FederatedConfig)


def equal_steps(rounds: int, steps: int = 20, batch: int = 16) -> RoundsRecipe:
    """The same number of gradient steps in a round for every method; the best of every third round is kept."""
    base = RoundsRecipe(rounds=rounds, steps=steps, watch=3, keep="best")
    alike = {name: replace(getattr(base, name), batch=batch) for name in ("full", "parts", "features")}
    return replace(base, **alike)


@dataclass(frozen=True)
class FederatedSettings(FederatedConfig, OfRecipes):
    """Everything that a federated run depends on. The defaults are the recipe ``default`` for glyphs.

    Attributes:
        methods: by name; empty: all that the network allows. local and fedavg always come along.
        deliver_whole: also write clients' files where each is a whole network.
        seeds: every method is trained with each.
    """

    rates: tuple[Positive, ...] = (0.05, 0.1)
    recipe: RoundsRecipe = field(default_factory=lambda: equal_steps(15))
    methods: tuple[str, ...] = ()
    deliver_whole: bool = False
    seeds: Seeds = (0, 1, 2)


@dataclass(frozen=True)
class PromptSettings(FederatedConfig, OfRecipes):
    """Everything that prompts for each domain or group depend on. The defaults are the recipe ``default``.

    Attributes:
        partition: who gets prompts: each "domain", or "natural": each client.
        clients: of glyphs, how many people there are.
        photos_per_client: of a domain or client, at most.
        seeds: prompts are trained with each.
    """

    partition: Literal["domain", "natural"] = "domain"
    clients: Annotated[int, msgspec.Meta(ge=2)] = 60
    photos_per_client: Annotated[int, msgspec.Meta(ge=FEWEST)] = 2000
    unseen: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    recipe: RoundsRecipe = field(default_factory=lambda: prompts_recipe(20, 10))
    seeds: Seeds = (0, 1, 2)


def _on_their_network(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Without the arguments of the small network here, where another one is asked for."""
    return replace(settings, arguments={}) if "backbone" in given else settings


def _federated(given: Mapping[str, Any]) -> FederatedSettings:
    """Equal budgets: 20 steps of 16 photos in a round, whatever the method."""
    settings = FederatedSettings()
    if not of_glyphs(given):
        recipe, part, feature = equal_steps(10), (0.1, 0.25), (0.001, 0.003)
        settings = replace(settings, recipe=recipe, rates=(0.02, 0.05), part_rates=part, feature_rates=feature)
    return _on_their_network(settings, given)


def _federated_paper(given: Mapping[str, Any]) -> FederatedSettings:
    """pFedPG section 4.1.3 for parts on a frozen body and for its server, FedPerfix section 4.1 for whole networks, and
    FedCLIP's range of rates."""
    base = RoundsRecipe()
    full = replace(base.full, epochs=10, learning_rate=0.01)
    recipe = replace(base, rounds=100, full=full, parts=replace(base.parts, epochs=5))
    features = 5e-5, 5e-4, 5e-3
    settings = FederatedSettings(
        rates=(0.01,), part_rates=(0.25,), feature_rates=features, generator_rates=(0.001,), recipe=recipe
    )
    return _on_their_network(settings, given)


def _prompts_paper(given: Mapping[str, Any]) -> PromptSettings:
    """Jia et al., "Visual Prompt Tuning", ECCV 2022, appendix A: 100 epochs, and the lower half of its range of rates,
    which it states for 256 photos a step; here a step has 64."""
    rates = tuple(rate * 64 / 256 for rate in (0.05, 0.1, 0.25, 0.5, 1.0, 2.5))
    return _on_their_network(PromptSettings(recipe=prompts_recipe(100, 10), part_rates=rates), given)


FederatedSettings.RECIPES = {"default": _federated, "paper": _federated_paper}
PromptSettings.RECIPES = {
    "default": lambda given: _on_their_network(PromptSettings(), given),
    "paper": _prompts_paper,
}


def train_federated(settings: FederatedSettings, out: Path, command: str = "") -> dict[str, Any]:
    """Trains clients together by one method or many, and judges how each client is served.

    Args:
        out: folder of the run; it gets ``run.toml``, which repeats it, and ``studies/federated.json``.
        command: what made it, to be published with its figures.

    Returns:
        The results document.

    Raises:
        UsageError, DataError: the settings or the photos do not allow it; nothing is left behind that refuses the
            corrected call.
    """
    settings = checked(settings)
    fitting = [name for name, method in METHODS.items() if allows_towers(settings) or not method.tower]
    names = settings.methods or fitting
    return _train(settings, out, names, command, ALWAYS, settings.deliver_whole)


def train_prompt(settings: PromptSettings, out: Path, command: str = "") -> dict[str, Any]:
    """Trains prompts and a classifier for each domain or group of people, on one frozen vision transformer.

    Args, Returns and Raises as of :func:`train_federated`.
    """
    return _train(checked(settings), out, ("head", "singleset-vpt", "singleset-vpt-d"), command, ("local",))


def _train(
    settings: FederatedSettings | PromptSettings,
    out: Path,
    names: Sequence[str],
    command: str,
    always: Sequence[str],
    whole: bool = False,
) -> dict[str, Any]:
    """Trains, judges, and writes what the first seed's models are exported from."""
    with starting(out):
        run = FederatedRun(out, part_of(settings, FederatedConfig))
        note_settings(out, settings)
        document = study_federated(run, names, settings.seeds, command, always)
        for row in document["rows"]:
            if row["name"] in METHODS and (whole or METHODS[row["name"]].carrier != "whole"):
                checkpoint = deliver(run, row["name"], settings.seeds[0], Rates(**row["rates"]))
                of_clients = len([*checkpoint.path.parent.glob("clients/*")])
                say(f"wrote {checkpoint.path} and {of_clients} files of clients")
        write_results(document, out / "studies" / "federated.json")
    return document
