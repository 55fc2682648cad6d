"""Compare a bank that grows by a domain with banks that do not.

TAPER section 3.4 claims that a bank can get a basis for a new domain and gives no figures. The grown bank is compared
with the bank without the basis and with one trained on all domains at once. Each seed leaves out another domain of the
run: a bank is trained without it and grows by its photos. Tasks of held-out photos are of old domains, or of the new
one.

    RUN/studies/growth/without-S, grown-S    runs of :mod:`refocus.cloud_train.runs.taper_growth`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.bank_tasks import Evaluation, Shares
from refocus.cloud_train.methods.taper.growth import some
from refocus.cloud_train.runs.taper import TaperRun
from refocus.cloud_train.runs.taper_growth import GrownRun
from studies.banks.evaluation import by_bank

WITHOUT, GROWN, AT_ONCE = "bank without the domain", "with one basis more", "all domains at once"


def study_growth(run: TaperRun, seeds: Sequence[int], command: str, count: int = 100) -> dict[str, Any]:
    """Build the results document; existing runs are not trained again.

    Args:
        run: run with all domains.
        seeds: seeds of the banks.
        command: command line, stored in the document.
        count: number of tasks of old domains, and of the new one, per seed.

    Raises:
        UsageError: the run has fewer than three domains, or fewer bases than domains.
    """
    if len(run.domains) < 3 or run.config.bases < len(run.domains):
        raise UsageError(
            f"{run.folder}: {len(run.domains)} domains and {run.config.bases} bases; this study leaves a domain out, so"
            " a run needs three domains or more, and a basis for each"
        )
    shares: dict[tuple[str, str], list[Shares]] = {}
    seconds: dict[str, list[float]] = {}
    left_out, test = [], run.photos("test")
    for seed in seeds:
        domain = run.domains[-1 - seed % len(run.domains)]
        left_out.append(domain)
        without, grown = _grown(run, domain, seed)
        runs = {WITHOUT: without, GROWN: grown, AT_ONCE: run}
        banks = {name: one.taper(seed) for name, one in runs.items()}
        for name, one in runs.items():
            seconds.setdefault(name, []).append(sum(one.seconds().values()))
        new = test.domain == run.domains.index(domain)
        for kind, chosen in (("old", ~new), ("new", new)):
            evaluation = Evaluation.draw(run, count=count, photos=some(test, chosen))
            for name, bank in banks.items():
                shares.setdefault((kind, name), []).append(by_bank(bank, run.descriptions(), evaluation))
    rows = [_row(kind, name, of, shares[kind, WITHOUT], seconds[name]) for (kind, name), of in shares.items()]
    return page.study_document(
        "growth",
        command,
        seeds,
        data=page.data_of(run.config.source, run.table, domains=len(run.domains), tasks=count * len(seeds)),
        backbone=run.config.small.name,
        settings={name: getattr(run.config, name) for name in ("side", "bases", "shards", "ways", "norm")},
        recipe={k: v for k, v in asdict(run.config.recipe).items() if k != "seed"},
        left_out=left_out,
        rows=rows,
    )


def _grown(run: TaperRun, domain: str, seed: int) -> tuple[TaperRun, GrownRun]:
    """Create the run without a domain, and the run that grows by it."""
    folder, of_domain = run.folder / "studies" / "growth", run.table.domain == domain
    bases = round(run.config.bases * (len(run.domains) - 1) / len(run.domains))
    config = replace(run.config, bases=bases)
    without = TaperRun(folder / f"without-{seed}", config, run.table.rows(~of_domain))
    more = replace(config, bases=bases + 1, grown_from=str(without.folder))
    return without, GrownRun(folder / f"grown-{seed}", more, run.table.rows(of_domain), without)


def _row(
    kind: str, name: str, shares: Sequence[Shares], first: Sequence[Shares], seconds: Sequence[float]
) -> dict[str, Any]:
    return {
        "tasks": kind,
        "name": name,
        "accuracy": float(np.mean(np.concatenate(shares))),
        "gain": bootstrap_mean(np.concatenate(shares) - np.concatenate(first)).as_dict(),
        "seeds": [float(np.mean(a) - np.mean(b)) for a, b in zip(shares, first, strict=True)],
        "seconds": float(np.mean(seconds)),
    }


COLUMNS: page.Columns = {
    "tasks": page.text("tasks"),
    "": page.text("name"),
    "accuracy": page.percent("accuracy"),
    "against the bank without": page.gain(),
    "seconds of training": page.text("seconds", ".0f"),
}


def _about(document: page.Document) -> str:
    found = {(row["tasks"], row["name"]): row["gain"] for row in document["rows"]}
    data, settings = document["data"], document["settings"]
    return (
        f"{data['classes']} classes in {data['domains']} domains, of which each seed leaves out another"
        f" ({', '.join(document['left_out'])}). With one basis more: old tasks"
        f" {page.short_points(found['old', GROWN])} points, tasks of the new domain"
        f" {page.short_points(found['new', GROWN])}; all domains at once {page.short_points(found['old', AT_ONCE])} and"
        f" {page.short_points(found['new', AT_ONCE])}. Photos of {settings['side']} pixels;"
        f" {settings['bases']} bases with all domains; {data['tasks']} tasks of {settings['ways']} classes of held-out"
        f" photos of each kind; {page.seeds_line(document)}. Seconds of the second row are those of growing alone;"
        " intervals are over tasks, whose photos are drawn from one set: for other photos they are wider."
    )


PAGES = {"growth": page.StudyPage("A basis for a new domain (TAPER section 3.4)", COLUMNS, _about)}
