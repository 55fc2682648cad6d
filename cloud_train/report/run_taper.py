"""The report of a run of ``refocus train taper``."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.page import Table
from refocus.cloud_train.report.run_story import Story, asked_for, curve_charts, duration, not_ended
from refocus.cloud_train.resume import SUFFIX
from refocus.cloud_train.runs.folder import read_settings
from refocus.cloud_train.runs.taper import TaperConfig
from refocus.cloud_train.tracking import Curve, read_curves

STAGES = ("stage 1, one network", "stage 2, specialists", "stage 3, mixing")


def taper_story(folder: Path) -> Story:
    """Content of the report of a run folder with TAPER banks.

    Raises:
        UsageError, DataError: a file of the run is damaged.
    """
    config, curves = read_settings(folder / "taper.json", TaperConfig), read_curves(folder)
    story = Story(f"Training run {folder.absolute().name}: TAPER")
    banks = sorted(folder.glob("seed-*/taper.json"))
    wanted = len(asked_for(folder).get("seeds", [])) or 1
    if len(banks) < wanted:
        story.missing.append(not_ended(f"{len(banks)} of {wanted} banks are trained"))
    story.facts = [
        ("photos", Path(config.source).name),
        ("network", config.small.name),
        ("bases", str(config.bases)),
        ("tasks", f"{config.ways} classes each ({config.kind})"),
        ("trained banks", str(len(banks))),
    ]
    story.curves = list(curve_charts(curves))
    story.why_no_people = (
        "A bank is judged by tasks, not people: python -m studies taper and python -m studies ways. Owners with photos of their"
        " own are in python -m studies improvement. Studies that were made stand below."
    )
    story.budgets = _budgets(folder, config, curves)
    return story


def _budgets(folder: Path, config: TaperConfig, curves: dict[str, dict[str, Curve]]) -> Table:
    """Rows of the three stages of each seed, then of what studies trained to compare with."""
    epochs = config.recipe.epochs
    files = {f"small-{epochs[0]}": STAGES[0], "specialists": STAGES[1], "taper": STAGES[2]}
    allowed = dict(zip(files, epochs, strict=True))
    steps: dict[str, int] = {}
    for what, metrics in curves.items():
        part = what.partition(", basis ")[0].replace("stage 2", "specialists").replace(" network, ", "-")
        part = part.removesuffix(" epochs")
        steps[part] = steps.get(part, 0) + metrics["loss"][0][-1]
    rows = []
    for place in sorted(folder.glob("seed-*")):
        stages = sorted((place / "stages").glob("*.safetensors"))
        trained = {path.stem: path for path in stages if not path.name.endswith(SUFFIX)}
        seed = place.name.replace("-", " ")
        for name in dict.fromkeys((*files, *trained)):
            count = steps.get(f"{seed}: {name}")
            rows.append(
                [
                    f"{files.get(name, name)}, {seed}",
                    str(allowed.get(name, "")),
                    "not noted" if count is None else f"{count:,}",
                    duration(_seconds(trained[name])) if name in trained else "not ended",
                ]
            )
    return ["training", "epochs allowed", "gradient steps used", "time used"], rows


def _seconds(path: Path) -> str:
    """Of a training, from its file's metadata.

    Raises:
        DataError: the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            return str((file.metadata() or {}).get("seconds", ""))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); remove it and train again") from None
