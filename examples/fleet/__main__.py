"""Run ``python -m examples.fleet --out DIR`` from the root of a checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.fleet.demo import run_demo
from refocus.edge.commands import run


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.fleet", description="Four retrainings for a fleet of simulated devices."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-pipeline"), help="empty folder; default: demo-pipeline")
    out = parser.parse_args().out
    run(lambda: lambda: run_demo(out))


if __name__ == "__main__":
    main()
