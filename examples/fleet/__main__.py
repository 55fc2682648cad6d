"""Run ``python -m examples.fleet --out DIR`` from the root of a checkout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.fleet.demo import run_demo
from refocus.edge.errors import RefocusError


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.fleet", description="Four retrainings for a fleet of simulated devices."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-pipeline"), help="empty folder; default: demo-pipeline")
    try:
        run_demo(parser.parse_args().out)
    except RefocusError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
