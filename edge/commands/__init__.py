"""The `refocus` command line of the device: one module per group of commands."""

from refocus.edge.commands.app import (
    EXPORT,
    MEASURE,
    PARTLY,
    RELEASE,
    TRAIN,
    ThreadsOption,
    callable_of,
    print_json,
    print_result,
    run,
)
from refocus.edge.commands.news import show_news, shows_progress, track
from refocus.edge.commands.options import Head, HeadTarget, Json, RefuseFallback, Shares, numbers, words

__all__ = [
    "EXPORT",
    "MEASURE",
    "PARTLY",
    "RELEASE",
    "TRAIN",
    "Head",
    "HeadTarget",
    "Json",
    "RefuseFallback",
    "Shares",
    "ThreadsOption",
    "callable_of",
    "numbers",
    "options",
    "print_json",
    "print_result",
    "run",
    "show_news",
    "shows_progress",
    "track",
    "words",
]
