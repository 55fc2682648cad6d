"""The command line of the studies: ``python -m studies``. Imports stay inside commands, so that --help is instant."""

from __future__ import annotations

from refocus.edge.commands import callable_of, run
from studies.commands import cost, publish
from studies.commands.study import study_app as app

for _module in (cost, publish):
    _module.register(app)


def main() -> None:
    """Run ``python -m studies``; statuses are those of ``refocus``."""
    run(lambda: callable_of(app))
