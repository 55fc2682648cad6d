"""Adds the commands of a device to ``refocus``: the entry point of this package."""

from __future__ import annotations

import typer

from refocus.edge.commands import history, personal, update
from refocus.edge.commands.album import album
from refocus.edge.commands.app import DEVICE
from refocus.edge.commands.bundle import check, inspect, upgrade
from refocus.edge.commands.migration import migrate
from refocus.edge.commands.recognize import recognize
from refocus.edge.commands.taper import condense, improve


def register(app: typer.Typer) -> None:
    for command in (recognize, album, inspect, check, upgrade, migrate, condense, improve):
        app.command(rich_help_panel=DEVICE)(command)
    for name, group in {"history": history.app, "personal": personal.app, "update": update.app}.items():
        app.add_typer(group, name=name, rich_help_panel=DEVICE)
