"""Run a programme of federated tables as a queue of jobs.

A job is one method of one table with one seed, or the choice of that method's learning rate. Its document is written as
soon as it ends, and a job that has a document with the same settings is skipped: documents are enough to continue on
another machine. Within a job the rounds of the run folder resume.

    RUN/TABLE-HASH/              a federated run (:mod:`refocus.cloud_train.federated.run`)
    RUN/features/                features of the photos that image towers are made from
    DOCUMENTS/JOB.json           document of a job
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
    """Table of a paper, repeated on available photos.

    Attributes:
        paper: the table that is repeated.
        about: differences from the paper's table.
        methods: its rows, first those that decide most orders.
        seeds: seeds of every row.
        like: another table, whose methods, seeds and settings are the defaults of this one.
        settings: settings of a federated run that differ from the defaults.
    """

    paper: str = ""
    about: str = ""
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    like: str = ""
    settings: dict[str, Any] = {}


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Order of two methods in a paper, and its test here.

    Attributes:
        better: method that is better in the paper.
        other: method that is worse.
        source: table of the paper.
        tables: tables whose clients are pooled.
        other_tables: tables of ``other`` if they differ, in the same order.
        who: clients that trained, clients that came later, or both.
        moment: time of the evaluation of ``better``, see :mod:`refocus.cloud_train.federated.evaluate`.
        other_moment: the same for ``other``.
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
    """Table whose rows are means over several tables.

    The paper averages for example over the domain that is left out.

    Attributes:
        paper: the table that is repeated.
        tables: tables with the same methods; every client of them has the same weight.
    """

    paper: str
    tables: tuple[str, ...]


class Programme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables and orders.

    Attributes:
        defaults: settings of every table.
        tables: tables by name, in the order in which they are run.
        orders: orders to evaluate, written before anything is run.
        attempts: orders that did not hold, in other tables; they are counted separately.
        averages: tables over several tables.
    """

    defaults: dict[str, Any]
    tables: dict[str, Table]
    orders: tuple[Order, ...]
    attempts: tuple[Order, ...] = ()
    averages: tuple[Average, ...] = ()


@dataclass(frozen=True)
class Job:
    """Training of a method of a table, or the choice of its rates.

    Attributes:
        table: name of the table.
        method: name of the method.
        seed: seed of the training; None for the choice of rates.
    """

    table: str
    method: str
    seed: int | None

    @property
    def name(self) -> str:
        """Name of the job and of its document."""
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
        """Return the settings of a table, with the programme's paths."""
        return config_of(self.programme, table)

    def run(self, table: str) -> FederatedRun:
        """Open the run of a table, once."""
        if table not in self._runs:
            config = self.config(table)
            placed: dict[str, Any] = {name: self._placed(getattr(config, name)) for name in PATHS}
            folder = self.folder / f"{table}-{settings_hash(plain(config))[:8]}"
            self._runs[table] = FederatedRun(folder, replace(config, **placed), towers=self.folder / "features")
        return self._runs[table]

    def _placed(self, path: str) -> str:
        return path if not path or path == "glyphs" or is_hub(path) else str((self.data / path).resolve())

    def jobs(self) -> Iterator[Job]:
        """Return every job, a method's choice of rates before its seeds."""
        for name in self.programme.tables:
            table = resolved(self.programme, name)
            for method in table.methods:
                if choice := self.choice_of_rates(name, method):
                    yield choice
                yield from (Job(name, method, seed) for seed in table.seeds)

    def choice_of_rates(self, table: str, method: str) -> Job | None:
        """Return the job that chooses a method's rates, or None.

        There is none if only one rate is possible.
        """
        several = len(self.config(table).rates_of(find_method(method))) > 1
        return Job(table, method, None) if several else None

    def document(self, job: Job) -> dict[str, Any] | None:
        """Return the document of a job if its settings are the current ones."""
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
        """Return the document of an equal job of another table, or None.

        The other table has the same settings. The document is renamed to this job.
        """
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
        """Return whether the choice of rates that a job needs is done."""
        choice = self.choice_of_rates(job.table, job.method)
        return choice in (None, job) or self.document(choice) is not None

    def rates(self, job: Job) -> Rates:
        """Return the rates of a method, chosen by a separate job if needed.

        Raises:
            DataError: the job that chooses the rates is not done.
        """
        choice = self.choice_of_rates(job.table, job.method)
        if choice is None:
            return self.config(job.table).rates_of(find_method(job.method))[0]
        chosen = self.document(choice)
        if chosen is None:
            raise DataError(f"{job.name} needs the document of {choice.name}; run that job first")
        return Rates(**chosen["rates"])


def load_programme(path: Path) -> Programme:
    """Read and check a programme.

    Raises:
        UsageError: the file is missing or no TOML, or has unknown keys, tables, methods or settings.
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
    """Return a table merged with the table it is like.

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
    """Merge the settings of a table with the programme's defaults."""
    return merged(programme.defaults, resolved(programme, name).settings)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; values of the second replace those of the first.

    Arguments of a network are replaced as a whole.
    """
    found = dict(one)
    for key, value in other.items():
        nested = isinstance(value, dict) and isinstance(found.get(key), dict) and key not in WHOLE
        found[key] = merged(found[key], value) if nested else value
    return found


def config_of(programme: Programme, table: str) -> FederatedConfig:
    """Return the settings of a table, with the programme's paths."""
    return changed_by(FederatedConfig(), merged_settings(programme, table), f"tables.{table}.settings")


def of_these_settings(programme: Programme, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Keep the documents whose settings are the programme's current ones.

    Documents of unknown tables are kept too.
    """
    now = {table: plain(config_of(programme, table)) for table in programme.tables}
    return {
        name: document
        for name, document in documents.items()
        if same_settings(document["settings"], now.get(name.split(".")[0], document["settings"]))
    }


def plain(config: FederatedConfig) -> dict[str, Any]:
    """Convert settings to JSON types."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Hash settings with SHA-256.

    The hash is the same on every machine: paths start at the folder of the data.
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def same_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Compare a document's settings with the current ones.

    Settings that the document does not name have their defaults.
    """
    flat_now, flat_stored, flat_plain = (dict(flat(one, WHOLE)) for one in (now, stored, plain(FederatedConfig())))
    return all(flat_stored.get(key, flat_plain.get(key)) == value for key, value in flat_now.items())


WHOLE = ("arguments", "partitioner_arguments")  # a missing argument has the default of its network, not ours


def run_queue(queue: Queue, chosen: Sequence[str] = (), processes: int = 1) -> list[str]:
    """Run every job that has no document yet.

    Args:
        queue: programme and folders.
        chosen: names of jobs, with ``*`` for any text; default: all.
        processes: number of concurrent jobs, each in a separate process with one thread, on the GPU if there is one.

    Returns:
        Names of the jobs that failed; each failure is reported at once, and the other jobs continue.
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
    """Outcome of a job: whether its document exists, and a message."""

    well: bool
    told: str


def finish_job(queue: Queue, job: Job) -> Finished:
    """Run a job and write its document.

    If a table with the same settings has done the job, its document is copied.
    """
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
    """Run several jobs concurrently, in the programme's order.

    A job waits until the rates that it needs are chosen. If a process is killed, for example for lack of memory, the
    jobs that ran with it are lost: they run again one by one, and a job that ends its pool alone has failed.
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
    """Run ready jobs in a pool until none is left or a process is killed.

    Jobs that are started are removed from ``waiting``.

    Returns:
        Jobs that were running when a process was killed.
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
    """Run a job in a process of the pool; the process keeps opened runs."""
    return finish_job(_open_here.setdefault(queue.folder, queue), job)


def run_job(queue: Queue, job: Job) -> dict[str, Any]:
    """Train the missing parts of a job and return its document."""
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
    """Shorten a run's result for the document.

    It has the log by columns, and clients with their counts and the photos that were recognised.
    """
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
    """Return the training budget, the same for every method of a table."""
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
    """Describe the machine that made a document."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if default_device() == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def written(document: Mapping[str, Any]) -> str:
    """Format a document with one line per field and per client.

    Differences between two versions are then small.
    """
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(f"    {json.dumps(one)}" for one in value)
            lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
