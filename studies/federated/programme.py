"""A programme of federated tables as a queue of jobs: what is run, in which order, and what every job leaves behind.

A job is one method of one table with one seed, or the choice of that method's learning rate. Its document is written as
soon as it ends, and a job whose document is there with the same settings is not run again: documents are enough to go
on from on another machine. Within a job the rounds of the run folder are gone on from.

    RUN/TABLE-HASH/              a federated run (:mod:`refocus.cloud_train.federated.run`)
    RUN/features/                features of the photos that image towers are made from
    DOCUMENTS/JOB.json           what a job found
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomllib
import torch

from refocus.cloud_train.data.hub import is_hub
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.client import default_device
from refocus.cloud_train.federated.methods import METHODS, find_method
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import changed_by, flat
from refocus.edge.errors import RefocusError
from refocus.edge.files import write_file
from refocus.edge.recognize import processor

JOB_SCHEMA = 1
RATES_JOB = "rates"
PATHS = ("source", "checkpoint", "tower_data", "tower_classes")
COLUMNS = ("round", "steps", "loss", "accuracy", "validation", "prompt_difference")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of a paper, on photos that are here.

    Attributes:
        paper: which table it repeats.
        about: in which respects it differs from the paper's.
        methods: its rows, first those that decide most orders.
        seeds: of every row.
        like: a table whose methods, seeds and settings hold where this one says nothing.
        settings: of a federated run, as far as they differ from the defaults.
    """

    paper: str = ""
    about: str = ""
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    like: str = ""
    settings: dict[str, Any] = {}


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a paper found: one method above another, and where that is judged here.

    Attributes:
        better, other: methods.
        source: the paper's table.
        tables: whose clients are pooled.
        other_tables: those of ``other`` where they are not the same, in the same order.
        who: clients that trained, those who came later, or both.
        moment, other_moment: when they are compared, as of :mod:`refocus.cloud_train.federated.evaluate`.
    """

    better: str
    other: str
    source: str
    tables: tuple[str, ...]
    other_tables: tuple[str, ...] = ()
    who: Literal["members", "unseen", "both"] = "members"
    moment: Literal["received", "used", "adapted", "base"] = "used"
    other_moment: Literal["received", "used", "adapted", "base"] = "used"


class Average(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the paper whose rows are means over several tables here, as over the domain that is left out.

    Attributes:
        paper: which table it repeats.
        tables: of the same methods; the clients of all of them count alike.
    """

    paper: str
    tables: tuple[str, ...]


class Programme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables and orders.

    Attributes:
        defaults: settings of every table.
        tables: by name, in the order in which they are run.
        orders: what is judged, written before anything is run.
        attempts: the same orders in other tables, for those that did not hold; they count for themselves.
        averages: tables over several tables.
    """

    defaults: dict[str, Any]
    tables: dict[str, Table]
    orders: tuple[Order, ...]
    attempts: tuple[Order, ...] = ()
    averages: tuple[Average, ...] = ()


@dataclass(frozen=True)
class Job:
    """One method of a table: with a seed, or the choice of its rates (None)."""

    table: str
    method: str
    seed: int | None

    @property
    def name(self) -> str:
        return f"{self.table}.{self.method}.{RATES_JOB if self.seed is None else f'seed-{self.seed}'}"


@dataclass(frozen=True)
class Queue:
    """A programme and where its photos, rounds and documents are.

    Attributes:
        data: folder of photos and weights, which the settings' paths start at.
        folder: of the runs; it may be lost between two calls.
        documents: what is kept of finished jobs.
    """

    programme: Programme
    data: Path
    folder: Path
    documents: Path
    _runs: dict[str, FederatedRun] = field(default_factory=dict)

    def config(self, table: str) -> FederatedConfig:
        """Settings of a table with paths as the programme has them."""
        return config_of(self.programme, table)

    def run(self, table: str) -> FederatedRun:
        """The run of a table; opened once."""
        if table not in self._runs:
            config = self.config(table)
            placed: dict[str, Any] = {name: self._placed(getattr(config, name)) for name in PATHS}
            folder = self.folder / f"{table}-{settings_hash(plain(config))[:8]}"
            self._runs[table] = FederatedRun(folder, replace(config, **placed), towers=self.folder / "features")
        return self._runs[table]

    def _placed(self, path: str) -> str:
        return path if not path or path == "glyphs" or is_hub(path) else str((self.data / path).resolve())

    def jobs(self) -> Iterator[Job]:
        """Every job, a method's choice of rates before its seeds."""
        for name in self.programme.tables:
            table = resolved(self.programme, name)
            for method in table.methods:
                if choice := self.choice_of_rates(name, method):
                    yield choice
                yield from (Job(name, method, seed) for seed in table.seeds)

    def choice_of_rates(self, table: str, method: str) -> Job | None:
        """The job that chooses a method's rates; None where there is nothing to choose."""
        several = len(self.config(table).rates_of(find_method(method))) > 1
        return Job(table, method, None) if several else None

    def document(self, job: Job) -> dict[str, Any] | None:
        """What a job found, if it is done with the settings that it has now."""
        path = self.documents / f"{job.name}.json"
        if not path.exists():
            return None
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            stored = dict(document["settings"])
        except (ValueError, KeyError, TypeError):
            say(f"{path} is damaged; its job is run again")
            return None
        return document if same_settings(stored, plain(self.config(job.table))) else None

    def twin(self, job: Job) -> dict[str, Any] | None:
        """The document of a job that another table with the same settings has done already, as this job's."""
        settings, seeds = plain(self.config(job.table)), resolved(self.programme, job.table).seeds
        for name in self.programme.tables:
            other = Job(name, job.method, job.seed)
            if name == job.table or plain(self.config(name)) != settings:
                continue
            if job.seed is None and resolved(self.programme, name).seeds[0] != seeds[0]:
                continue  # rates are chosen on the first one
            if (document := self.document(other)) is not None:
                return {**document, "federated_job": job.name, "table": job.table, "same_as": other.name}
        return None

    def ready(self, job: Job) -> bool:
        """Whether nothing that a job needs is missing."""
        choice = self.choice_of_rates(job.table, job.method)
        return choice in (None, job) or self.document(choice) is not None

    def rates(self, job: Job) -> Rates:
        """The rates of a method, chosen by its own job where there are several.

        Raises:
            DataError: that job is not done.
        """
        choice = self.choice_of_rates(job.table, job.method)
        if choice is None:
            return self.config(job.table).rates_of(find_method(job.method))[0]
        chosen = self.document(choice)
        if chosen is None:
            raise DataError(f"{job.name} needs the document of {choice.name}; run that job first")
        return Rates(**chosen["rates"])


def load_programme(path: Path) -> Programme:
    """Reads and checks a programme.

    Raises:
        UsageError: no such file, no TOML, unknown keys, tables, methods or settings.
    """
    try:
        programme = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Programme)
    except OSError as error:
        raise UsageError(f"--programme {path} cannot be read ({error.strerror}); give a TOML file of tables") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--programme {path}: {error}; expected defaults, tables and orders") from None
    for name in programme.tables:
        for method in resolved(programme, name).methods:
            find_method(method)
        config_of(programme, name)
    for order in (*programme.orders, *programme.attempts):
        _check_order(programme, order)
    for average in programme.averages:
        methods = {resolved(programme, table).methods for table in average.tables}
        if len(methods) != 1:
            raise UsageError(
                f"averages: {average.paper}: {len(methods)} sets of methods; expected tables of the same ones"
            )
    return programme


def _check_order(programme: Programme, order: Order) -> None:
    what = f"orders: {order.better} over {order.other}"
    others = order.other_tables or order.tables
    if not order.tables or len(others) != len(order.tables):
        raise UsageError(
            f"{what}: {len(order.tables)} tables and {len(others)} other_tables; expected as many, one at least"
        )
    for method, tables in ((order.better, order.tables), (order.other, others)):
        for table in tables:
            if table not in programme.tables or method not in resolved(programme, table).methods:
                raise UsageError(f"{what}: no job of {method} in {table}; the methods are {', '.join(METHODS)}")


def resolved(programme: Programme, name: str) -> Table:
    """A table with what it takes from the one it is like.

    Raises:
        UsageError: there is no such table.
    """
    if name not in programme.tables:
        raise UsageError(f"tables: there is no {name}; known: {', '.join(programme.tables)}")
    table = programme.tables[name]
    if not table.like:
        return table
    other = resolved(programme, table.like)
    taken = {key: getattr(table, key) or getattr(other, key) for key in ("paper", "about", "methods", "seeds")}
    return msgspec.structs.replace(table, **taken, settings=merged(other.settings, table.settings))


def merged_settings(programme: Programme, name: str) -> dict[str, Any]:
    return merged(programme.defaults, resolved(programme, name).settings)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, the second over the first; arguments of a network are taken whole."""
    found = dict(one)
    for key, value in other.items():
        nested = isinstance(value, dict) and isinstance(found.get(key), dict) and key not in WHOLE
        found[key] = merged(found[key], value) if nested else value
    return found


def config_of(programme: Programme, table: str) -> FederatedConfig:
    """Settings of a table, with paths as the programme has them."""
    return changed_by(FederatedConfig(), merged_settings(programme, table), f"tables.{table}.settings")


def of_these_settings(programme: Programme, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of the programme's tables, without those of jobs that ran with other settings than it has now."""
    now = {table: plain(config_of(programme, table)) for table in programme.tables}
    return {
        name: document
        for name, document in documents.items()
        if same_settings(document["settings"], now.get(name.split(".")[0], document["settings"]))
    }


def plain(config: FederatedConfig) -> dict[str, Any]:
    """Settings as JSON has them."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings, the same on every machine: their paths start at the folder of the data."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def same_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a document's settings are those of now; what it does not name has its default."""
    flat_now, flat_stored, flat_plain = (dict(flat(one, WHOLE)) for one in (now, stored, plain(FederatedConfig())))
    return all(flat_stored.get(key, flat_plain.get(key)) == value for key, value in flat_now.items())


WHOLE = ("arguments", "partitioner_arguments")  # one that is left out has a default of its own, not ours


def run_queue(queue: Queue, chosen: Sequence[str] = (), processes: int = 1) -> list[str]:
    """Runs every job that has no document yet.

    Args:
        chosen: names of jobs, with ``*`` for anything; default: all.
        processes: jobs at a time, each in a process of its own with one thread, on the GPU where there is one.

    Returns:
        Names of the jobs that failed; each is reported as it fails, and the others go on.
    """
    waiting = [
        job
        for job in queue.jobs()
        if (not chosen or any(fnmatch.fnmatch(job.name, pattern) for pattern in chosen)) and queue.document(job) is None
    ]
    if processes > 1:
        return _run_at_once(queue, waiting, processes)
    failed = []
    for job in waiting:
        say(f"{job.name}: begins")
        done = finish_job(queue, job)
        say(done.told)
        if not done.well:
            failed.append(job.name)
    return failed


@dataclass(frozen=True)
class Finished:
    """How a job ended: whether its document is there, and one sentence."""

    well: bool
    told: str


def finish_job(queue: Queue, job: Job) -> Finished:
    """Runs a job, unless a table with the same settings has, and writes its document."""
    try:
        twin = queue.twin(job)
        document = twin or run_job(queue, job)
    except RefocusError as error:
        return Finished(False, f"{job.name} failed: {error}")
    queue.documents.mkdir(parents=True, exist_ok=True)
    write_file(queue.documents / f"{job.name}.json", written(document))
    how = f"the same as {twin['same_as']}" if twin else f"done in {document['budget']['seconds']:.0f} s"
    return Finished(True, f"{job.name}: {how}")


def _run_at_once(queue: Queue, waiting: list[Job], processes: int) -> list[str]:
    """Several jobs at a time, in the programme's order, each once the rates that it needs are chosen.

    A process that is killed, as where memory ends, takes those beside it along: they run again one by one, and the
    one that ends its pool alone has failed.
    """
    failed, suspects = list[str](), list[Job]()

    def note(job: Job, done: Finished) -> None:
        say(done.told)
        if not done.well:
            failed.append(job.name)

    while waiting or suspects:
        several = not suspects
        jobs = waiting if several else [suspects.pop(0)]
        for job in _in_one_pool(queue, jobs, processes if several else 1, note):
            if several:
                suspects.append(job)
            else:
                note(job, Finished(False, f"{job.name} failed: its process was killed; is there memory enough?"))
        if several and waiting and not suspects:
            for job in waiting:
                say(f"{job.name} failed: the rates of {job.method} are not chosen; run that job first")
            return [*failed, *(job.name for job in waiting)]
    return failed


def _in_one_pool(queue: Queue, waiting: list[Job], processes: int, note: Callable[[Job, Finished], None]) -> list[Job]:
    """Runs the jobs that are ready, which are taken from ``waiting``, until none is, or a process was killed.

    Returns:
        Jobs that ran when that happened.
    """
    running: dict[Future[Finished], Job] = {}
    spawn = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    with ProcessPoolExecutor(processes, spawn, _one_thread) as pool:
        while True:
            ready = [job for job in waiting if queue.ready(job)]
            for job in ready[: processes - len(running)]:
                waiting.remove(job)
                try:
                    running[pool.submit(_finish_here, replace(queue, _runs={}), job)] = job
                except BrokenProcessPool:
                    return [job, *running.values()]
            if not running:
                return []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    continue
                job = running.pop(future)
                note(job, future.result() if error is None else Finished(False, f"{job.name} failed: {error!r}"))
            if any(isinstance(future.exception(), BrokenProcessPool) for future in running if future.done()):
                return [*running.values()]


_open_here: dict[Path, Queue] = {}


def _one_thread() -> None:
    torch.set_num_threads(1)


def _finish_here(queue: Queue, job: Job) -> Finished:
    """Runs a job in a process of the pool, which keeps the runs that it has opened."""
    return finish_job(_open_here.setdefault(queue.folder, queue), job)


def run_job(queue: Queue, job: Job) -> dict[str, Any]:
    """Trains what is missing of a job and returns its document."""
    started = time.monotonic()
    run, settings = queue.run(job.table), plain(queue.config(job.table))
    run.check([job.method])
    if job.seed is None:
        seed = resolved(queue.programme, job.table).seeds[0]
        tried = run.validations(job.method, seed)
        rates = next(
            one for one in run.config.rates_of(find_method(job.method)) if tried[str(one)] == max(tried.values())
        )
        found: dict[str, Any] = {"tried": tried, "rates": asdict(rates), "seed": seed}
    else:
        rates = queue.rates(job)
        found = {"rates": asdict(rates), "seed": job.seed, **_found(run.result(job.method, job.seed, rates))}
    seconds = time.monotonic() - started
    return {
        "schema_version": JOB_SCHEMA,
        "federated_job": job.name,
        "table": job.table,
        "method": job.method,
        **found,
        "budget": {**budget(run, job), "seconds": round(seconds, 1)},
        "data": {"source": queue.config(job.table).source, "fingerprint": run.clients.fingerprint},
        "machine": machine(),
        "settings_sha256": settings_hash(settings),
        "settings": settings,
    }


def _found(result: Mapping[str, Any]) -> dict[str, Any]:
    """A run's result in short: the log by columns, clients with their counts and which photos were recognised."""
    log = result["log"]
    curves = {name: [_short(record.get(name)) for record in log] for name in COLUMNS if name in log[-1]}
    clients = {
        who: [{**one, "right": bits} for one, bits in zip(result[who], result["right"][who], strict=True)]
        for who in ("members", "unseen")
    }
    costs = {name: result[name] for name in ("kept_round", "storage", "trained")}
    sent = {"numbers": log[0]["numbers"], "bytes_up": max(record["bytes_up"] for record in log)}
    return {"curves": curves, **clients, **costs, **sent, "gigaflops": result["flops_per_photo"] / 1e9}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def budget(run: FederatedRun, job: Job) -> dict[str, Any]:
    """How much a method may train: the same for every method of a table."""
    config, people = run.config, run.clients
    of_method = config.recipe.of(find_method(job.method))
    return {
        "rounds": (config.tuning_rounds or config.recipe.rounds) if job.seed is None else config.recipe.rounds,
        "steps": config.recipe.steps,
        "batch": of_method.batch,
        "participation": config.recipe.participation,
        "clients": len(people.members),
        "newcomers": len(people.unseen),
        "classes": len(people.classes),
        "photos": sum(len(one.train) for one in people.members),
        "test_photos": sum(len(one.test) for one in (*people.members, *people.unseen)),
    }


def machine() -> dict[str, Any]:
    """What made a document."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if default_device() == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def written(document: Mapping[str, Any]) -> str:
    """A document with one line for each field and each client: small differences between two versions."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(f"    {json.dumps(one)}" for one in value)
            lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
