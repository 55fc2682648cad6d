"""Adds the cloud side's commands to ``refocus``. What they do is imported inside them, so that --help is instant."""

from __future__ import annotations

import typer

from refocus.benchmarks.commands.bench import bench
from refocus.cloud_train.commands.bench import register as register_bench
from refocus.cloud_train.commands.evaluate import evaluate, study
from refocus.cloud_train.commands.federate import federate_app
from refocus.cloud_train.commands.measure import compatibility, overhead
from refocus.cloud_train.commands.pipeline import app as pipeline
from refocus.cloud_train.commands.release import app as release
from refocus.cloud_train.commands.results import demo, results
from refocus.cloud_train.commands.serve import serve
from refocus.cloud_train.commands.train import train_app


def register(app: typer.Typer) -> None:
    groups = {"train": train_app, "federate": federate_app, "release": release, "pipeline": pipeline}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for command in (evaluate, study, demo, results, compatibility, overhead):
        app.command()(command)
    register_bench(bench)
    app.command()(serve)
