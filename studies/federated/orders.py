"""Evaluate the orders of a programme on the documents of its jobs.

An order holds, is reversed, is not seen (with the smallest difference that would have been seen), or has not been run
yet. Two methods are compared photo by photo, seed by seed. With ten clients or more the interval is over clients and
seeds; with fewer, as of domains, it is over their photos and seeds, and does not cover other domains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure.statistics import Interval, widened
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.federated.methods import title_of
from studies.federated.programme import JOB_SCHEMA, Average, Job, Order, Programme, merged_settings, resolved

MANY_CLIENTS = 10  # from which intervals are over clients
DRAWS = 2000  # of a bootstrap
REVERSED, NOT_SEEN, HOLDS, NOT_RUN = "reversed", "not seen", "holds", "not yet run"
Document = Mapping[str, Any]


def read_documents(folder: Path) -> dict[str, Document]:
    """Read the documents of jobs, by name.

    Raises:
        DataError: a file is none, or of another version.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            name, version = document["federated_job"], document["schema_version"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path} is not a document of a job; remove it, and run the programme again") from None
        if version != JOB_SCHEMA or name != path.stem:
            raise DataError(f"{path} is of job {name}, version {version}; expected {path.stem}, {JOB_SCHEMA}")
        found[name] = document
    return found


def judge(
    programme: Programme, documents: Mapping[str, Document], orders: Sequence[Order] | None = None
) -> list[dict[str, Any]]:
    """Return every order with its verdict, sorted by verdict.

    Reversed orders come first, then those not seen, those that hold, and those not yet run.

    Args:
        programme: tables and orders.
        documents: documents of jobs, by job name.
        orders: orders to evaluate; default: those of the programme, without its further attempts.
    """
    rows = [_judged(programme, order, documents) for order in (programme.orders if orders is None else orders)]
    ranks = (REVERSED, NOT_SEEN, HOLDS, NOT_RUN)
    return sorted(rows, key=lambda row: ranks.index(row["verdict"]))


def _judged(programme: Programme, order: Order, documents: Mapping[str, Document]) -> dict[str, Any]:
    pairs = list(_pairs(programme, order))
    done = sum(all(job.name in documents for job in pair) for pair in pairs)
    row = {
        "better": order.better,
        "other": order.other,
        "source": order.source,
        "tables": list(order.tables),
        "seeds": done,
        "wanted": len(pairs),
    }
    if done < len(pairs):
        return {**row, "verdict": NOT_RUN, "difference": None}
    clients: dict[tuple[str, str], list[np.ndarray]] = {}
    for better, other in pairs:
        for key, difference in _differences(order, better.table, documents[better.name], documents[other.name]):
            clients.setdefault(key, []).append(difference)
    found = interval([np.stack(seeds) for seeds in clients.values()])
    verdict = HOLDS if found["low"] > 0 else REVERSED if found["high"] < 0 else NOT_SEEN
    return {**row, "verdict": verdict, "difference": found, "smallest": (found["high"] - found["low"]) / 2}


def _pairs(programme: Programme, order: Order) -> Iterator[tuple[Job, Job]]:
    """Yield the two jobs of each table and seed of an order."""
    for table, other in zip(order.tables, order.other_tables or order.tables, strict=True):
        for seed in resolved(programme, table).seeds:
            yield Job(table, order.better, seed), Job(other, order.other, seed)


def _differences(
    order: Order, table: str, better: Document, other: Document
) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """Yield the difference on each test photo, (R,) of 1, 0 or -1.

    There is one array per client, with its table and name.

    Raises:
        DataError: the two documents are of different photos.
    """
    if better["data"]["fingerprint"] != other["data"]["fingerprint"]:
        raise DataError(f"{better['federated_job']} and {other['federated_job']} are of other photos; run one again")
    for who in ("members", "unseen"):
        if order.who not in (who, "both"):
            continue
        for one, two in zip(better[who], other[who], strict=True):
            bits = [
                unpacked_bits(client["right"][moment], client["test"]).astype(float)
                for client, moment in ((one, order.moment), (two, order.other_moment))
            ]
            yield (table, one["name"]), bits[0] - bits[1]


def interval(clients: Sequence[np.ndarray]) -> dict[str, Any]:
    """Average paired differences over clients, with a 95 % bootstrap interval.

    Args:
        clients: of each, (S, R): seeds, photos.
    """
    rng, many = np.random.default_rng(0), len(clients) >= MANY_CLIENTS
    means = np.array([one.mean(1) for one in clients])  # (clients, S)
    draws = []
    for _ in range(DRAWS):
        seeds = rng.integers(means.shape[1], size=means.shape[1])
        if many:
            draws.append(means[rng.integers(len(means), size=len(means))][:, seeds].mean())
        else:
            photos = (one[seeds].mean(0) for one in clients)
            draws.append(np.mean([one[rng.integers(len(one), size=len(one))].mean() for one in photos]))
    low, high = np.quantile(draws, (0.025, 0.975))
    found = Interval(float(means.mean()), float(low), float(high))
    return {
        **(widened(found, len(means)) if many else found).as_dict(),
        "seeds": means.mean(0).tolist(),
        "over": "clients" if many else "photos",
    }


# ---- how it is shown

ORDER_COLUMNS: page.Columns = {
    "order": lambda row: f"{title_of(row['better'])} over {title_of(row['other'])}",
    "found by": page.text("source"),
    "judged in": lambda row: ", ".join(row["tables"]),
    "verdict": page.text("verdict"),
    "difference, points": lambda row: "" if row["difference"] is None else page.short_points(row["difference"]),
    "interval over": lambda row: "" if row["difference"] is None else row["difference"]["over"],
    "smallest it could have shown": lambda row: (
        f"{100 * row['smallest']:.1f}" if row["verdict"] in (NOT_SEEN, REVERSED) else ""
    ),
}
ROW_COLUMNS: page.Columns = {
    "method": page.text("title"),
    "seeds": page.text("seeds"),
    "members": lambda row: f"{row['used']:.1%}",
    "deviation": lambda row: f"{100 * row['deviation']:.1f}",
    "gain over alone": lambda row: "" if row["gain"] is None else f"{100 * row['gain']:+.1f}",
    "better off than alone": lambda row: "" if row["better_off"] is None else f"{row['better_off']:.0%}",
    "newcomers as received": lambda row: "" if row["unseen"] is None else f"{row['unseen']:.1%}",
    "rates": page.text("rates"),
    "steps a round": page.text("steps", ".3g"),
    "kept round": page.text("kept"),
    "prompt difference": lambda row: "" if row["prompts"] is None else f"{row['prompts']:.1%}",
    "trained": page.text("trained", ","),
    "stored": page.text("storage", ","),
    "numbers sent": page.text("numbers", ","),
    "GFLOP a photo": page.text("gigaflops", ".3f"),
    "minutes": page.text("minutes", ".1f"),
    "on": page.text("device"),
}


def summary(rows: Sequence[Document]) -> str:
    """Count the orders that hold, and name the reversed ones."""
    verdicts = [row["verdict"] for row in rows]
    count = {verdict: verdicts.count(verdict) for verdict in (HOLDS, NOT_SEEN, REVERSED, NOT_RUN)}
    judged = len(rows) - count[NOT_RUN]
    names = "; ".join(
        f"{ORDER_COLUMNS['order'](row)} ({row['source']}; {page.short_points(row['difference'])})"
        for row in rows
        if row["verdict"] == REVERSED
    )
    reversed_ones = f"Reversed: {names}. " if names else "None is reversed. " if judged else ""
    return (
        f"{reversed_ones}Of {len(rows)} orders that were written down before the runs, {judged} are judged:"
        f" {count[HOLDS]} hold, {count[NOT_SEEN]} are not seen, {count[REVERSED]} are reversed;"
        f" {count[NOT_RUN]} have jobs that have not run yet."
    )


def table_rows(programme: Programme, name: str, documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """Return a row for each method of a table that has been run."""
    table = resolved(programme, name)
    of = {
        method: [
            documents[job.name] for job in (Job(name, method, seed) for seed in table.seeds) if job.name in documents
        ]
        for method in table.methods
    }
    rates = {method: documents.get(f"{name}.{method}.rates") for method in of}
    return [_row(method, found, of.get("local", []), rates[method]) for method, found in of.items() if found]


def average_rows(programme: Programme, average: Average, documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """Return a row for each method that all tables of an average have.

    All seeds must have been run.

    Returns:
        Rows of text: newcomers of each table, their mean, the mean of members, and that of all clients of all tables,
            each with the network that the server sends, as in the paper.
    """
    rows = []
    for method in resolved(programme, average.tables[0]).methods:
        names = {
            table: [Job(table, method, seed).name for seed in resolved(programme, table).seeds]
            for table in average.tables
        }
        if not all(name in documents for of_table in names.values() for name in of_table):
            continue
        shares = {
            who: {
                table: np.array([_shares(documents[name], who, "received") for name in of_table])  # (seeds, clients)
                for table, of_table in names.items()
            }
            for who in ("members", "unseen")
        }
        newcomers = {table: f"{found.mean():.1%}" for table, found in shares["unseen"].items()}
        pooled = {who: np.concatenate(list(of.values()), axis=1) for who, of in shares.items()}
        means = {
            "newcomers": pooled["unseen"],
            "members": pooled["members"],
            "both": np.concatenate(list(pooled.values()), axis=1),
        }
        of_all = {f"{who}, mean": f"{found.mean():.1%}" for who, found in means.items()}
        rows.append({"method": title_of(method), **newcomers, **of_all})
    return rows


def _row(method: str, found: Sequence[Document], alone: Sequence[Document], choice: Document | None) -> dict[str, Any]:
    """Build a row of a table.

    Args:
        method: name of the method.
        found: documents of the method, one per seed.
        alone: documents of clients on their own, one per seed.
        choice: document of the choice of the method's rates, or None if there was one choice only.
    """
    used = np.array([_shares(one, "members", "used") for one in found])
    unseen = [_shares(one, "unseen", "received") for one in found]
    gains = client_gains(found, alone)
    prompts = [one["curves"]["prompt_difference"][-1] for one in found if "prompt_difference" in one["curves"]]
    first = found[0]
    server = f", server {first['rates']['server']:g}" if first["rates"]["server"] else ""
    return {
        "title": title_of(method),
        "seeds": str(len(found)),
        "used": float(used.mean()),
        "deviation": float(used.mean(0).std()),
        "gain": None if gains is None else float(gains.mean()),
        "better_off": None if gains is None else float((gains > 0).mean()),
        "unseen": float(np.mean(unseen)) if unseen[0] else None,
        "rates": f"{first['rates']['client']:g}{_edge(first['rates'], choice)}{server}",
        "steps": float(np.mean(first["curves"]["steps"])),
        "device": ", ".join(sorted({"CPU" if one["machine"]["device"] == "cpu" else "GPU" for one in found})),
        "kept": ", ".join(str(one["kept_round"]) for one in found),
        "prompts": float(np.mean(prompts)) if prompts else None,
        **{key: first[key] for key in ("trained", "storage", "numbers", "gigaflops")},
        "minutes": sum(one["budget"]["seconds"] for one in found) / 60,
    }


def _edge(rates: Mapping[str, float], choice: Document | None) -> str:
    """Return a note if the chosen client rate is an extreme of those tried.

    A better rate may lie beyond it.
    """
    if choice is None:
        return ""
    tried = [float(re.split(r"(?<!e)-", name)[0]) for name in choice["tried"]]  # as "0.1-0.01" with the server's
    at = {min(tried): " (lowest tried)", max(tried): " (highest tried)"}
    return at.get(rates["client"], "") if len(set(tried)) > 1 else ""


def client_gains(found: Sequence[Document], alone: Sequence[Document]) -> np.ndarray | None:
    """Return the gain of each client over training alone, (clients,).

    It is the mean over the seeds that both methods have, or None without any.
    """
    by_seed = {one["seed"]: _shares(one, "members", "used") for one in alone}
    gains = [
        np.subtract(_shares(one, "members", "used"), by_seed[one["seed"]]) for one in found if one["seed"] in by_seed
    ]
    return np.mean(gains, axis=0) if gains else None


def _shares(document: Document, who: str, moment: str) -> list[float]:
    return [client[moment] / client["test"] for client in document[who]]


def about_table(programme: Programme, name: str, documents: Mapping[str, Document]) -> str:
    """Describe the photos, budget and machines of a table."""
    table, settings = resolved(programme, name), merged_settings(programme, name)
    mine = [one for one in documents.values() if one["table"] == name and "members" in one]
    budget = mine[0]["budget"]
    machines = sorted({_machine(one["machine"]) for one in mine})
    return (
        f"{table.paper}. {table.about} Photos: `{settings.get('source', 'glyphs')}`, {budget['classes']} classes,"
        f" {budget['clients']} clients and {budget['newcomers']} newcomers, {budget['photos']} photos to train on and"
        f" {budget['test_photos']} to be judged by. {budget['rounds']} rounds, {100 * budget['participation']:.3g} % of"
        f" all clients in each, {budget['steps']} steps of {budget['batch']} photos at most for each of them."
        f"{_ratio(mine)} Machine: {'; '.join(machines)}."
    )


def _machine(machine: Mapping[str, Any]) -> str:
    """Return the name of the GPU or processor that trained a job."""
    return machine["device"] if machine["device"] != "cpu" else f"{machine['processor']} ({machine['threads']} thread)"


def _ratio(documents: Sequence[Document]) -> str:
    """Compare what FedCLIP trains and sends with FedAvg (FedCLIP Fig. 3d).

    The text states how many times fewer numbers FedCLIP trains and sends than FedAvg of the tower; it is "" if one of
    them has not been run.
    """
    of = {one["method"]: one for one in documents}
    if not {"fedclip", "fedavg-clip"} <= of.keys():
        return ""
    trained, sent = (of["fedavg-clip"][key] / of["fedclip"][key] for key in ("trained", "numbers"))
    return (
        f" FedCLIP trains {trained:.1f} and sends {sent:.1f} times fewer numbers than FedAvg of the tower, paper 283."
    )


def density_and_curves(programme: Programme, name: str, documents: Mapping[str, Document]) -> bytes:
    """Plot training curves and the density of clients' gains as PNG.

    The curves are training loss and validation accuracy by round; gains are over training alone.
    """
    from matplotlib.figure import Figure

    table = resolved(programme, name)
    figure = Figure(figsize=(14, 3.4), layout="constrained")
    panels = loss, accuracy, validation, density = figure.subplots(1, 4)
    of = _by_method(name, documents)
    for number, method in enumerate(table.methods):
        found = of.get(method, [])
        if not found:
            continue
        curves = found[0]["curves"]
        style: dict[str, Any] = {"label": title_of(method), "linewidth": 1, **_line(number)}
        for key, axes in (("loss", loss), ("accuracy", accuracy), ("validation", validation)):
            looked = [(r, v) for r, v in zip(curves["round"], curves.get(key, []), strict=False) if v is not None]
            if looked:
                axes.plot(*zip(*looked, strict=True), **style)
        gains = client_gains(found, of.get("local", []))
        if gains is not None and method != "local" and len(gains) >= MANY_CLIENTS:
            density.plot(*_density(100 * gains), **style)
    titles = "training loss", "training accuracy", "validation", "gain over alone, points"
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.25)
    for axes in panels[:3]:
        axes.set_xlabel("round, first seed")
    validation.legend(fontsize=6, frameon=False)
    return page.png(figure)


def _line(number: int) -> dict[str, Any]:
    """Return the colour and dashes of a method, the same in all panels.

    After ten methods the same colours are dashed.
    """
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}


def _by_method(table: str, documents: Mapping[str, Document]) -> dict[str, list[Document]]:
    """Return the documents of a table's trainings by method."""
    found: dict[str, list[Document]] = {}
    for one in documents.values():
        if one["table"] == table and "members" in one:
            found.setdefault(one["method"], []).append(one)
    return found


def _density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the kernel density of gains with Silverman's rule."""
    width = max(1e-3, 1.06 * values.std() * len(values) ** -0.2)
    places = np.linspace(values.min() - 3 * width, values.max() + 3 * width, 200)
    kernels = np.exp(-0.5 * ((places[:, None] - values) / width) ** 2)
    return places, kernels.mean(1) / (width * np.sqrt(2 * np.pi))


def unpacked_bits(text: str, count: int) -> np.ndarray:
    """Unpack bits packed by ``refocus.cloud_train.federated.evaluate``."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count).astype(bool)
