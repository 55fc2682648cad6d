"""The `refocus` command line of the device: one module per group of commands."""

from refocus.edge.commands.app import main, print_json
from refocus.edge.commands.options import Threads as ThreadsOption

__all__ = ["ThreadsOption", "main", "print_json"]
