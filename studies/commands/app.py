"""Command line of the studies, ``python -m studies``.

Commands import inside their functions so that ``--help`` is fast.
"""

from __future__ import annotations

from refocus.edge.commands import callable_of, run
from studies.commands import cost, publish
from studies.commands.study import study_app as app

for _module in (cost, publish):
    _module.register(app)


def main() -> None:
    """Run ``python -m studies``; exit statuses are those of ``refocus``."""
    run(lambda: callable_of(app))
