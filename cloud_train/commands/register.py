"""Commands of the cloud side of ``refocus``.

They import inside their functions so that ``--help`` is fast.
"""

from __future__ import annotations

import typer

from refocus.benchmarks.commands.bench import bench
from refocus.cloud_train.commands.bench import register as register_bench
from refocus.cloud_train.commands.demo import demo
from refocus.cloud_train.commands.evaluate import evaluate
from refocus.cloud_train.commands.federate import federate_app
from refocus.cloud_train.commands.measure import compatibility
from refocus.cloud_train.commands.pipeline import app as pipeline
from refocus.cloud_train.commands.release import app as release
from refocus.cloud_train.commands.serve import serve
from refocus.cloud_train.commands.train import train_app
from refocus.edge.commands import MEASURE, RELEASE, TRAIN

PANELS = {"train": TRAIN, "federate": TRAIN, "demo": TRAIN}
PANELS |= dict.fromkeys(("evaluate", "compatibility"), MEASURE)
PANELS |= dict.fromkeys(("release", "pipeline", "serve"), RELEASE)


def register(app: typer.Typer) -> None:
    """Add the commands and groups to the application."""
    groups = {"train": train_app, "federate": federate_app, "release": release}
    groups["pipeline"] = pipeline
    for name, group in groups.items():
        app.add_typer(group, name=name, rich_help_panel=PANELS[name])
    for command in (demo, evaluate, compatibility, serve):
        app.command(rich_help_panel=PANELS[command.__name__])(command)
    register_bench(bench)
