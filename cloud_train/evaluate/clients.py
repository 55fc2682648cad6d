"""Compare methods on the same clients: accuracy and cost.

The tables are 1 to 6 of the papers. The first rows are always each client alone and one network for all clients: the
baselines that personalisation has to exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.federated.methods import ALWAYS, TITLES, find_method
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun
from refocus.cloud_train.train.clients import TrainedClients

MOMENTS = ("received", "used", "adapted")
BASE = ", base prompts alone"  # pFedPG's row without what is generated for a client
SCRATCH = "from scratch"  # in the place of what a network was pretrained on
# The round that clients get, by the recipe; the last one in documents that do not say.
KEPT = {"last": "the last round", "best": "the round whose validation photos are recognised best"}
# Orders of methods in the papers: the better one, the other one, and the table that reports it.
ORDERS = (
    ("pfedpg", "fedvpt", "pFedPG Tables 1 to 3"),
    ("pfedpg", f"pfedpg{BASE}", "pFedPG Table 4"),
    ("fedperfix", "fedrep", "FedPerfix Table 2"),
    ("fedrep", "fedavg", "FedPerfix Table 2"),
    ("fedperfix", "prefix-zero", "FedPerfix Table 6"),
    ("fedperfix", "prefix-random", "FedPerfix Table 6"),
    ("fedclip", "zero-shot", "FedCLIP Table 2"),
    ("fedclip", "fedavg-clip", "FedCLIP Table 2"),
)


def evaluate_clients(trained: TrainedClients, command: str = "") -> dict[str, Any]:
    """Return the results document of clients that trained together.

    Args:
        trained: the result of ``train_federated`` or ``train_prompt``.
        command: command line that made it, to be published with its figures.
    """
    return study_federated(trained.run, trained.methods, trained.seeds, command, trained.baselines)


def study_federated(
    run: FederatedRun, methods: Sequence[str], seeds: Sequence[int], command: str, always: Sequence[str] = ALWAYS
) -> dict[str, Any]:
    """Train missing networks, evaluate all methods and return the document.

    Args:
        run: clients and settings.
        methods: names of methods.
        seeds: seeds of the trainings.
        command: command line, stored in the document.
        always: methods that come first even if they are not in ``methods``; every row is paired with each of them.

    Raises:
        UsageError, DataError: see :meth:`FederatedRun.check`.
    """
    names = [*always, *(name for name in dict.fromkeys(methods) if name not in always)]
    rates = run.train(names, seeds)
    results = {name: [run.result(name, seed, rates[name]) for seed in seeds] for name in names}
    based = [name for name in names if "base" in results[name][0]["members"][0]]
    config = run.config
    return page.study_document(
        "federated",
        command,
        seeds,
        data=data_of_clients(run),
        backbone=config.backbone,
        arguments=config.arguments,
        pretrained=_pretrained(config),
        always=list(always),
        **{name: getattr(config.recipe, name) for name in ("rounds", "keep", "participation")},
        rows=[
            {**_row(name, results, always, moment), "rates": asdict(rates[name])}
            for moment, some in (("used", names), ("base", based))
            for name in some
        ],
        orders=[*_orders(results)],
    )


def _pretrained(config: FederatedConfig) -> str:
    """Describe the weights that clients begin with."""
    if config.scratch:
        return SCRATCH
    return Path(config.checkpoint).name if config.checkpoint else "on embedded letters of other people"


def data_of_clients(run: FederatedRun) -> dict[str, Any]:
    """Return the section ``data`` of a document about clients."""
    clients, config = run.clients, run.config
    return {
        "source": Path(config.source).name,
        "fingerprint": clients.fingerprint,
        "classes": len(clients.classes),
        "clients": len(clients.members),
        "unseen": len(clients.unseen),
        "partition": config.partition,
        "alpha": config.alpha if "dirichlet" in config.partition else None,
        "photos": sum(len(client.train) for client in clients.members),
        "targets": sum(len(client.test) for client in clients.members),
    }


def _orders(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the papers' orders whose two methods were evaluated.

    Each has the paired difference per client, and the bytes that the other method sends per byte of the better one.
    """
    for better, other, source in ORDERS:
        rival = other.removesuffix(BASE)
        if better not in results or rival not in results:
            continue
        moment = "base" if other.endswith(BASE) else "used"
        gains = [
            np.array(shares(one, "members", "used")) - np.array(shares(two, "members", moment))
            for one, two in zip(results[better], results[rival], strict=True)
        ]
        sent = [sum(record["bytes_up"] for record in results[name][0]["log"]) for name in (better, rival)]
        yield {
            "better": better,
            "other": other,
            "source": source,
            "difference": paired(gains, np.ones(len(gains[0]))),
            "bytes": sent[1] / sent[0] if sent[0] else None,
        }


def _row(
    name: str, every: Mapping[str, Sequence[Mapping[str, Any]]], always: Sequence[str], moment: str
) -> dict[str, Any]:
    results, alone = every[name], every["local"]
    used = np.array([shares(result, "members", moment) for result in results])
    beside = {other: np.array([shares(result, "members", "used") for result in every[other]]) for other in always}
    equal = np.ones(used.shape[1])
    log = [record for result in results for record in result["log"]]
    target = float(np.mean([_curve(result)[-1][1] for result in alone]))
    row = {
        "name": name if moment == "used" else f"{name}{BASE}",
        "about": find_method(name).about,
        **{m: float(np.mean([shares(result, "members", m) for result in results])) for m in MOMENTS},
        "used": float(used.mean()),
        "deviation": float(used.mean(0).std()),
        "worst_decile": worst_tenth(used.mean(0)),
        "made_worse": float((used.mean(0) < beside["local"].mean(0)).mean()),
        "over": {other: paired([*(used - values)], equal) for other, values in beside.items()},
        "unseen": {moment: _mean_of(results, moment) for moment in MOMENTS},
        "numbers": log[0]["numbers"],
        "bytes_down": float(np.mean([r["bytes_down"] for r in log])),
        "bytes_up": float(np.mean([r["bytes_up"] for r in log])),
        "rounds_to_local": _rounds_to(results, target),
        "gigaflops": float(np.mean([r["flops_per_photo"] for r in results])) / 1e9,
        "seconds": float(np.mean([r["seconds"] / r["clients"] for r in log])),
        "curve": _curve(results[0]),
        "kept_rounds": [kept_round(result) for result in results],
    }
    if moment != "used":  # the rest is of the prompts that were generated
        row |= {
            "received": row["used"],
            "adapted": None,
            "unseen": dict.fromkeys(MOMENTS),
            "rounds_to_local": None,
            "curve": [],
        }
    return row


def shares(result: Mapping[str, Any], who: str, moment: str) -> list[float]:
    """Return the test accuracy of each client."""
    return [client[moment] / client["test"] for client in result[who]]


def kept_round(result: Mapping[str, Any]) -> int:
    """Return the round whose network the clients get.

    Results of earlier deployments do not name it; for them it is the last round.
    """
    return int(result.get("kept_round", len(result["log"])))


def _mean_of(results: Sequence[Mapping[str, Any]], moment: str) -> float | None:
    unseen = [shares(result, "unseen", moment) for result in results]
    return float(np.mean(unseen)) if unseen[0] else None


def _curve(result: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return pairs of a round and the mean validation accuracy after it."""
    return [(record["round"], record["validation"]) for record in result["log"] if "validation" in record]


def _rounds_to(results: Sequence[Mapping[str, Any]], target: float) -> int | None:
    """Return the first round that reaches a validation accuracy, or None.

    The validation accuracy is the mean over seeds. Only rounds with a validation are considered.
    """
    curves = [_curve(result) for result in results]
    for place, (number, _) in enumerate(curves[0]):
        if np.mean([curve[place][1] for curve in curves]) >= target:
            return number
    return None


# ---- how the study is shown


def about_clients(document: page.Document) -> str:
    """Describe the data and the conditions of a document about clients."""
    data = document["data"]
    alpha = f", alpha {data['alpha']}" if data["alpha"] is not None else ""
    pretrained, kept = document["pretrained"], KEPT[document.get("keep", "last")]
    return (
        f"{data['classes']} classes; {data['clients']} clients ({data['partition']}{alpha}) with"
        f" {data['photos']} photos to train on and {data['targets']} to be judged by, {data['unseen']} more clients who"
        f" come afterwards. `{document['backbone']}` {document['arguments']},"
        f" {pretrained if pretrained == SCRATCH else f'pretrained: {pretrained}'}."
        f" {document['rounds']} rounds, {document['participation']:.0%} of the clients in each,"
        f" {page.seeds_line(document)}. Means are over clients, intervals too. *As used*: after {kept} and"
        " what the method itself does before use; *one round later*: after one more local round, whatever the method,"
        " which is a common footing. Seconds are an order of magnitude: other work ran beside it."
    )


def titled(name: str) -> str:
    """Return the title of a row; documents keep the names of the command."""
    method = name.removesuffix(BASE)
    return TITLES.get(method, method) + name.removeprefix(method)


def _over(name: str) -> Callable[[page.Row], str]:
    return lambda row: page.short_points(row["over"][name])


def _columns(document: page.Document) -> page.Columns:
    return {
        "method": lambda row: titled(row["name"]),
        "as used": page.percent("used"),
        "deviation": lambda row: f"{100 * row['deviation']:.1f}",
        "worst tenth": page.percent("worst_decile"),
        "one round later": page.percent("adapted"),
        **{f"over {titled(name)}": _over(name) for name in document["always"]},
        "made worse than alone": page.text("made_worse", ".0%"),
        "unseen clients, first round": lambda row: page.percent("adapted")(row["unseen"]),
        "numbers sent": page.text("numbers", ","),
        "bytes up": page.text("bytes_up", ",.0f"),
        "rounds to local's": page.text("rounds_to_local"),
        "GFLOP a photo": page.text("gigaflops", ".3f"),
        "s a round": page.text("seconds", ".2f"),
    }


# What the papers found.
ORDER_COLUMNS: page.Columns = {
    "order": lambda row: f"{titled(row['better'])} over {titled(row['other'])}",
    "found by": page.text("source"),
    "difference here": page.gain("difference"),
    "": page.verdict,
    "bytes of the second over the first's": lambda row: "" if row["bytes"] is None else f"{row['bytes']:.2f}",
}
TITLE = "clients who train together (Tables 1 to 6 of pFedPG and FedPerfix)"
PAGES = {"federated": page.StudyPage(TITLE, _columns, about_clients, orders=ORDER_COLUMNS)}
