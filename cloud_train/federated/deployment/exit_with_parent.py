"""Runs a module that ends when its starter does: ``python -m ...deployment.exit_with_parent MODULE ARGUMENTS``.

However the starter ends, the pipe that it holds to our standard input closes: so no server is left behind.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading


def _end_with_starter() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
