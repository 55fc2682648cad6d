"""Training of clients or groups that have their own photos.

The functions are those of ``refocus train federated`` and ``refocus train prompt``.
"""

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
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, allows_towers, prompts_recipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import note_settings, starting
from refocus.cloud_train.settings import Positive, checked, part_of
from refocus.cloud_train.train.recipes import OfRecipes, Seeds, of_glyphs
from refocus.export.program import Checkpoint

Settings = TypeVar("Settings", bound=FederatedConfig)


def equal_steps(rounds: int, steps: int = 20, batch: int = 16) -> RoundsRecipe:
    """Return a recipe with equal gradient steps per round for every method.

    Every third round is evaluated and the best is kept.

    Args:
        rounds: number of rounds T.
        steps: gradient steps per client and round.
        batch: batch size.
    """
    base = RoundsRecipe(rounds=rounds, steps=steps, watch=3, keep="best")
    alike = {name: replace(getattr(base, name), batch=batch) for name in ("full", "parts", "features")}
    return replace(base, **alike)


@dataclass(frozen=True)
class FederatedSettings(FederatedConfig, OfRecipes):
    """Everything that a federated run depends on.

    The defaults are the recipe ``default`` for glyphs.

    Attributes:
        methods: names of methods; empty: all that the network allows. local and fedavg are always added.
        deliver_whole: also write the files of clients that are whole networks.
        seeds: random seeds; every method is trained with each.
    """

    rates: tuple[Positive, ...] = (0.05, 0.1)
    recipe: RoundsRecipe = field(default_factory=lambda: equal_steps(15))
    methods: tuple[str, ...] = ()
    deliver_whole: bool = False
    seeds: Seeds = (0, 1, 2)


@dataclass(frozen=True)
class PromptSettings(FederatedConfig, OfRecipes):
    """Everything that prompts for each domain or group depend on.

    The defaults are the recipe ``default``.

    Attributes:
        partition: "domain": each domain gets prompts; "natural": each client does.
        clients: number of people, for glyphs.
        photos_per_client: maximum number of photos of a domain or client.
        seeds: random seeds; prompts are trained with each.
    """

    partition: Literal["domain", "natural"] = "domain"
    clients: Annotated[int, msgspec.Meta(ge=2)] = 60
    photos_per_client: Annotated[int, msgspec.Meta(ge=FEWEST)] = 2000
    unseen: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    recipe: RoundsRecipe = field(default_factory=lambda: prompts_recipe(20, 10))
    seeds: Seeds = (0, 1, 2)


def _on_their_network(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Drop the arguments of the default network if another is chosen."""
    return replace(settings, arguments={}) if "backbone" in given else settings


def _federated(given: Mapping[str, Any]) -> FederatedSettings:
    """Return settings with 20 steps of 16 photos per round for all methods."""
    settings = FederatedSettings()
    if not of_glyphs(given):
        recipe, part, feature = equal_steps(10), (0.1, 0.25), (0.001, 0.003)
        settings = replace(settings, recipe=recipe, rates=(0.02, 0.05), part_rates=part, feature_rates=feature)
    return _on_their_network(settings, given)


def _federated_paper(given: Mapping[str, Any]) -> FederatedSettings:
    """Return the settings of the papers.

    They are those of pFedPG section 4.1.3 for parts on a frozen body and for its server, of FedPerfix section 4.1 for
    whole networks, and FedCLIP's range of rates.
    """
    base = RoundsRecipe()
    full = replace(base.full, epochs=10, learning_rate=0.01)
    recipe = replace(base, rounds=100, full=full, parts=replace(base.parts, epochs=5))
    features = 5e-5, 5e-4, 5e-3
    settings = FederatedSettings(
        rates=(0.01,), part_rates=(0.25,), feature_rates=features, generator_rates=(0.001,), recipe=recipe
    )
    return _on_their_network(settings, given)


def _prompts_paper(given: Mapping[str, Any]) -> PromptSettings:
    """Return the settings of the paper on prompts.

    Jia et al., "Visual Prompt Tuning", ECCV 2022, appendix A: 100 epochs, and the lower half of its range of rates. The
    paper states them for 256 photos per step; here a step has 64.
    """
    rates = tuple(rate * 64 / 256 for rate in (0.05, 0.1, 0.25, 0.5, 1.0, 2.5))
    return _on_their_network(PromptSettings(recipe=prompts_recipe(100, 10), part_rates=rates), given)


FederatedSettings.RECIPES = {"default": _federated, "paper": _federated_paper}
PromptSettings.RECIPES = {
    "default": lambda given: _on_their_network(PromptSettings(), given),
    "paper": _prompts_paper,
}


@dataclass(frozen=True)
class TrainedClients:
    """Result of :func:`train_federated` and :func:`train_prompt`.

    Attributes:
        run: run whose results :mod:`refocus.cloud_train.evaluate.clients` reads.
        methods: names of the trained methods, the baselines first.
        baselines: methods that every other one is compared with.
        seeds: seeds of the trainings.
        checkpoints: checkpoints of the first seed; each has its clients' files in ``clients/`` next to it.
    """

    run: FederatedRun
    methods: tuple[str, ...]
    baselines: tuple[str, ...]
    seeds: tuple[int, ...]
    checkpoints: tuple[Checkpoint, ...]


def train_federated(settings: FederatedSettings, out: Path) -> TrainedClients:
    """Train clients together by one or several methods.

    Args:
        settings: settings of the run.
        out: folder of the run; it gets ``run.toml``, which repeats the run.

    Raises:
        UsageError: the settings do not allow it; the call can be repeated with the same folder.
        DataError: the photos do not allow it; the call can be repeated likewise.
    """
    settings = checked(settings)
    fitting = [name for name, method in METHODS.items() if allows_towers(settings) or not method.tower]
    names = settings.methods or fitting
    return _train(settings, out, names, ALWAYS, settings.deliver_whole)


def train_prompt(settings: PromptSettings, out: Path) -> TrainedClients:
    """Train prompts and a classifier for each domain or group of people.

    The vision transformer is frozen and shared. Arguments and errors are those of :func:`train_federated`.
    """
    return _train(checked(settings), out, ("head", "singleset-vpt", "singleset-vpt-d"), ("local",))


def _train(
    settings: FederatedSettings | PromptSettings,
    out: Path,
    names: Sequence[str],
    baselines: Sequence[str],
    whole: bool = False,
) -> TrainedClients:
    """Train every method with every seed; write the first seed's models."""
    with starting(out):
        run = FederatedRun(out, part_of(settings, FederatedConfig))
        note_settings(out, settings)
        names = (*baselines, *(name for name in dict.fromkeys(names) if name not in baselines))
        rates = run.train(names, settings.seeds)
        checkpoints = []
        for name in names:
            if whole or METHODS[name].carrier != "whole":
                checkpoints.append(deliver(run, name, settings.seeds[0], rates[name]))
                count = len([*checkpoints[-1].path.parent.glob("clients/*")])
                say(f"wrote {checkpoints[-1].path} and {count} files of clients")
    return TrainedClients(run, names, tuple(baselines), tuple(settings.seeds), tuple(checkpoints))
