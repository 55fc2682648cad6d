"""The `refocus` command line of the device: one module per group of commands."""

from refocus.edge.commands.app import ThreadsOption, main, print_json

__all__ = ["ThreadsOption", "main", "print_json"]
