"""The stages of one photo apart, the price over the bare encoder, threads, and batches."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import numpy as np

from refocus.benchmarks.document.schema import Conditions
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.measure.timer import Series, measure
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.recognize import STAGES, answer_album
from refocus.edge.runtimes import Program

BATCHES = (1, 4, 16)
ALBUM = 32  # photos


def stages(table: Table) -> None:
    """Each stage, and the whole, of the same queries: the stages add up to the whole."""
    target = table.target
    with target.open_full("stages") as device:
        marks: list[list[tuple[str, int]]] = []
        clock = time.perf_counter_ns

        def whole() -> None:
            seen: list[tuple[str, int]] = [("", clock())]
            device.mark = lambda stage: seen.append((stage, clock()))
            device.recognize(next_photo[0], "photo")
            marks.append(seen)

        next_photo = [target.album.next()]

        def take() -> None:
            next_photo[0] = target.album.next()

        found = measure({"whole": whole}, table.conditions, table.monitor(), {"whole": take})["whole"]
    kept = marks[-len(found.samples_ms) :]
    for stage, samples in _apart(kept):
        table.add("stages", Series(samples, found.starts_s, found.observations, found.start), stage)
    table.add("stages", found, "whole")


def _apart(marks: list[list[tuple[str, int]]]) -> Iterator[tuple[str, np.ndarray]]:
    durations: dict[str, list[float]] = {}
    for seen in marks:
        for (_, begin), (stage, end) in itertools.pairwise(seen):
            durations.setdefault(stage, []).append((end - begin) / 1e6)
    for stage in STAGES:
        if len(durations.get(stage, [])) == len(marks):  # a bundle without history has no such stages
            yield stage, np.array(durations[stage])


def overhead(table: Table) -> None:
    """The recogniser without decoding, and with it, over the bare encoder, in turns in one run."""
    target = table.target
    encoder = target.encoder(target.threads)
    with target.open_full("overhead") as device:
        candidates = {
            "bare encoder": bare(target, encoder),
            "recogniser": lambda: target.recognise(device),
            "whole": lambda: device.recognize(target.album.next(), "photo"),
        }
        table.time("overhead", candidates, over="bare encoder")
    encoder.close()


def bare(target: Target, encoder: Program) -> Callable[[], object]:
    """A call that runs the encoder alone, its memory bound, with what a stranger is given beside the photo; on a GPU
    with the copies to it and back."""
    return encoder.bind({"photo": target.pixels[0], **target.bundle.defaults(encoder.artifact)})


def threads(table: Table) -> None:
    """The encoder with one thread and more, in turns; numbers that it does not run on here are missing."""
    target, cores = table.target, os.cpu_count() or 1
    counts = sorted({1, 2, 4, cores} & set(range(1, cores + 1)))
    programs = {str(count): target.encoder(count) for count in counts}
    taken = {n: bare(target, program) for n, program in programs.items() if program.threads == int(n)}
    if left := [n for n in programs if n not in taken]:
        ran = {program.threads for program in programs.values()} - {0}
        said = f"runs on {', '.join(map(str, sorted(ran)))} in this process" if ran else "takes no number of threads"
        table.lacks(f"threads, {', '.join(left)}", f"{target.pair[0]} {said}")
    if taken:
        table.time("threads", taken, name="encoder", over="1" if "1" in taken else "")
    for program in programs.values():
        program.close()


def batches(table: Table) -> None:
    """Photos encoded at once, and a whole album from files to a table."""
    target = table.target
    with target.open(None) as device:
        first = device.encoder.artifact.inputs[0].shape[0]
        sizes = BATCHES if isinstance(first, str) else (int(first),)
        stacks = {str(n): np.concatenate([target.next_pixels() for _ in range(n)]) for n in sizes}
        encode: dict[str, Callable[[], object]] = {n: partial(device.features_of, stack) for n, stack in stacks.items()}
        table.time(
            "batch",
            encode,
            photos={n: int(n) for n in stacks},
            name="encoder",
            conditions=_fewer(table.conditions, max(sizes)),
        )
        files = [target.scratch / f"album-{number}.jpg" for number in range(ALBUM)]
        results = target.scratch / "album.csv"

        def fresh() -> None:
            for file in files:
                file.write_bytes(target.album.next())

        table.time(
            "album",
            {"whole album": lambda: answer_album(device, files, results, workers=1)},
            {"whole album": fresh},
            photos={"whole album": ALBUM},
            conditions=_fewer(table.conditions, ALBUM),
        )
        for file in files:
            file.unlink(missing_ok=True)


def _fewer(conditions: Conditions, photos: int) -> Conditions:
    """A sample of many photos stands for as many queries; no fewer samples than a verdict needs."""
    enough = max(min(conditions.least, conditions.min_queries), conditions.min_queries // photos)
    return msgspec.structs.replace(conditions, min_queries=enough)
