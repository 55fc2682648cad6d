"""Inference runtimes. One more runtime is one more file here and one more line in ``RUNTIMES``."""

from refocus.edge.runtimes.base import RUNTIMES, Program, load_artifact, load_program

__all__ = ["RUNTIMES", "Program", "load_artifact", "load_program"]
