"""Inference runtimes. One more runtime is one more file here and one more line in ``RUNTIMES``."""

from edge.runtimes.base import RUNTIMES, Program, load_program, verified_bytes

__all__ = ["RUNTIMES", "Program", "load_program", "verified_bytes"]
