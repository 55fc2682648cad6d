"""Negative results of a document; pages begin with them.

They are losses, orders that are not seen, missed goals, and missing measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refocus.cloud_train.evaluate import report
from refocus.cloud_train.evaluate.page import Document, method_name, short_points, verdict
from refocus.cloud_train.federated.methods import title_of
from studies.bench.overhead import lines as overhead_lines
from studies.report.sections import kind_of
from studies.streams.pages import METHODS

Difference = Mapping[str, Any]
EXPECTED = ("control", "no personalisation", "the bank's generic model")  # to be worse than what is compared


@dataclass(frozen=True)
class Negative:
    """Negative result of a document.

    Attributes:
        text: text of its line on the page.
        points: change of accuracy in points; None if it is not one of accuracy.
    """

    text: str
    points: float | None = None


def negatives(document: Document) -> list[Negative]:
    """Return the negative results of a document, reversed orders first."""
    kind = kind_of(document)
    of = _OF_STUDY.get(document["study"], _gains) if kind == "study" else _OF_KIND[kind]
    return [*_orders(document), *of(document)]


def _changed(what: str, difference: Difference) -> Negative:
    return Negative(f"{what}: {short_points(difference)} points", 100 * difference["mean"])


def _together(what: str, found: Iterable[tuple[str, Difference]], shipped: bool = True) -> Iterator[Negative]:
    """Yield one negative result for several differences, if there are any.

    Args:
        what: beginning of its text.
        found: names and differences.
        shipped: whether devices run these methods, so that the largest loss can represent the page.
    """
    worst = sorted(found, key=lambda one: float(one[1]["mean"]))
    if worst:
        listed = ", ".join(f"{name} {short_points(difference)}".strip() for name, difference in worst)
        yield Negative(f"{what}: {listed} points", 100 * worst[0][1]["mean"] if shipped else None)


def _orders(document: Document) -> Iterator[Negative]:
    unseen = 0
    for order in document.get("orders", ()):
        if verdict(order) == "the other way round":
            what = f"reversed: {title_of(order['better'])} over {title_of(order['other'])} ({order['source']})"
            yield _changed(what, order["difference"])
        unseen += verdict(order) == "no difference seen"
    if unseen:
        yield Negative(f"no difference is seen for {unseen} of the paper's {len(document['orders'])} orders")


def _gains(document: Document) -> Iterator[Negative]:
    """Yield the rows with a loss.

    Controls and starting points are left out, because they are expected to be worse.
    """
    found = []
    for row in document["rows"]:
        if not row["name"].startswith(EXPECTED) and row.get("gain") and row["gain"]["high"] < 0:
            of = [str(row[key]) for key in ("network", "judged_on", "tasks", "target") if key in row]
            found.append((" of ".join([row["name"], *of]), row["gain"]))
    return _together("worse than what they are compared with", found, shipped=False)


def _levels(document: Document) -> Iterator[Negative]:
    found = [
        (f"{method['name']} with {row['name']}", method["gain"])
        for row in document["rows"]
        for method in row["methods"]
        if method["gain"]["high"] < 0
    ]
    return _together("worse than the photo alone, by the share of clients with something in common", found)


def _contents(document: Document) -> Iterator[Negative]:
    for content in ("foreign", "mixed"):
        found = [(row["name"], row[content]) for row in document["rows"] if row[content]["high"] < 0]
        yield from _together(f"worse than the photo alone with a {content} history", found)


def _over(key: str, what: str) -> Callable[[Document], Iterator[Negative]]:
    """Return a function that yields rows with ``key`` below zero."""

    def found(document: Document) -> Iterator[Negative]:
        worse = [row for row in document["rows"] if row[key]["high"] < 0]
        return _together(what, ((f"{row['name']} {row.get('photos', '')}".strip(), row[key]) for row in worse))

    return found


def _attention(document: Document) -> Iterator[Negative]:
    found = [(method_name(r["name"]), r["difference"]) for r in document["rows"] if r["difference"]["low"] <= 0]
    return _together("no more attention to photos of the class than their share", found, shipped=False)


def _shuffling(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if not row["shuffle"] and row["over_shuffled"]["high"] >= 0:
            yield _changed("no loss without shuffling is seen", row["over_shuffled"])


def _improvement(document: Document) -> Iterator[Negative]:
    own = [row for row in document["rows"] if row["name"] == "own" and row["photos"]]
    without = [f"{row['photos']} photos {short_points(row['gain'])}" for row in own if row["gain"]["low"] <= 0]
    if without:
        yield Negative(f"no gain is seen after {', '.join(without)} points", min(100 * r["gain"]["mean"] for r in own))


def _federated(document: Document) -> Iterator[Negative]:
    alone = [(title_of(row["name"]), row["over"]["local"]) for row in document["rows"] if "local" in row["over"]]
    worse = [one for one in alone if one[1]["high"] < 0]
    return _together(f"worse than each client alone, {len(worse)} of {len(alone)} methods", worse, shipped=False)


def _stream(document: Document) -> Iterator[Negative]:
    rows = document["rows"]
    for method in ("delivered", "shares"):
        for cell in ("foreign history of 15", "foreign history of 63"):
            found = [row for row in rows if (row["method"], row["cell"]) == (method, cell)]
            if found:
                worst = min(found, key=lambda row: float(row["gain"]["mean"]))
                if worst["gain"]["high"] < 0:
                    where = f"{worst['data']}, {worst['encoder']}; {worst['harmed']:.0%} of the people are harmed"
                    yield _changed(f"{METHODS[method]}, {cell} ({where})", worst["gain"])
    own = {
        title: [row for row in rows if (row["method"], row["cell"]) == (method, "base")]
        for method, title in METHODS.items()
    }
    for what, key in (("worse than the photo alone", "high"), ("not seen to be better", "low")):
        count = {title: sum(row["gain"][key] <= 0 for row in found) for title, found in own.items()}
        said = [f"{title} on {number} of {len(own[title])}" for title, number in count.items() if number]
        if said:
            yield Negative(f"{what} with 15 own photos, on sets and encoders: {', '.join(said)}")


def _trade_off(document: Document) -> Iterator[Negative]:
    for content in ("foreign", "mixed"):
        worst = min((r for r in document["rows"] if r["content"] == content), key=lambda r: float(r["gain"]["mean"]))
        where = f"{worst['data']}, {worst['encoder']}; {worst['harmed']:.0%} of the people are harmed"
        yield _changed(f"class shares, {content} history of {worst['history']} ({where})", worst["gain"])


def _few_people(document: Document) -> Iterator[Negative]:
    rows = document["rows"]
    for key, what, shipped in (
        ("delivered_over_shares", "delivered", True),
        ("head_over_shares", "a head and class shares", False),
    ):
        worst = min(rows, key=lambda row: float(row[key]["mean"]))
        worse = sum(row[key]["high"] < 0 for row in rows)
        where = f"{worst['data']}, {worst['encoder']}, {worst['training_people']} training people"
        about = f"{what} is worse than class shares alone on {worse} of {len(rows)} rows; at worst ({where})"
        yield from _together(about, [("", worst[key])], shipped)


def _camera_roll(document: Document) -> Iterator[Negative]:
    rows = [row for row in document["rows"] if row["method"] == "shares"]
    worse = [row for row in rows if row["gain"]["high"] < 0]
    if worse:
        worst = min(worse, key=lambda row: float(row["gain"]["mean"]))
        where = (
            f"{worst['data']}, {worst['encoder']}, {worst['cell']}; {worst['people_who_lose']:.0%} of the people lose"
        )
        yield _changed(
            f"class shares on camera rolls, {len(worse)} of {len(rows)} cells; at worst ({where})", worst["gain"]
        )
    weaker = [row for row in rows if row.get("marking_gain", {"low": 1})["low"] <= 0]
    if weaker:
        yield Negative(f"in {len(weaker)} of {len(rows)} cells the largest probability marks as many unknown photos")


def _mixed_folder(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if row["method"] == "shares" and row["gain"]["high"] < 0:
            where = f"{row['encoder']}, temperature {row['temperature']}, photos of {row['group']}"
            yield _changed(f"class shares in a mixed folder, {where}", row["gain"])


def _decoding(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if not row["what"].startswith("control") and row["gain"]["high"] < 0:
            yield _changed(f"{row['megapixels']} megapixels, quality {row['quality']}", row["gain"])


def _evaluation(document: Document) -> Iterator[Negative]:
    longest = [*document["accuracy"]["original"]][-1]
    foreign, own = document["gain"].get("foreign_delivered"), document["gain"]["delivered"][longest]
    if own["low"] <= 0:
        yield _changed(f"no gain is seen of what is delivered after {longest} own photos", own)
    if foreign and foreign[longest]["high"] < 0:
        yield _changed(f"delivered after {longest} photos of another person", foreign[longest])
    for content in ("foreign", "mixed"):
        pooled = document["never_worse"][content]
        if pooled["high"] < 0:
            yield _changed(f"delivered with a {content} history, all lengths pooled", pooled)
    for row in (document.get("ways") or {"rows": ()})["rows"]:
        if row["way"] not in ("original", "uniform") and row["gain"]["low"] <= 0:
            yield _changed(f"no gain is seen of {report.WAYS[row['way']]}", row["gain"])


def _sets(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        control = row["label_sets"].get("control")
        after = control and control["foreign"]["mean_average_precision"]
        if after and after["high"] < 0:
            yield _changed(f"seed {row['seed']}, {method_name(row['variant'])} after photos of another person", after)


def _targets(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if row.get("change") and row["change"]["high"] < 0:
            yield _changed(f"{row['target']} against the reference", row["change"])
        if row.get("made_worse"):
            who = "people" if "streams" in document["accuracy_of_targets"] else "streams"
            yield Negative(f"{row['target']} serves {row['made_worse']:.0%} of the {who} worse than the reference")


def _retrainings(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        failed = [gate["name"] for gate in row["gates"] if not gate["passed"]]
        if failed:
            over = row["over"].get("current", row["over"]["plain"])
            yield _changed(f"run {row['run']} is {row['state']}, as it fails {', '.join(failed)}", over)


def _cuda(document: Document) -> Iterator[Negative]:
    found = document["cuda_sections"]
    for name, section in found.items():
        if "failed" in section:
            yield Negative(f"{name} failed")
        for way, agrees in section.get("agrees", {}).items():
            if not agrees:
                yield Negative(f"{name}, {way}: differs from the CPU by more than the tolerance")
        missing = Counter(one["way"] for of in section.get("programs", {}).values() for one in of["missing"])
        if missing:
            ways = ", ".join(f"{way} of {number}" for way, number in missing.items())
            yield Negative(f"not measured, networks and heads: {ways}")


def _bundles(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        for target, found in row["targets"].items():
            if found["status"] != "written":
                yield Negative(f"{row['network']} is not exported to {target}")


def _clients(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        for target, found in row["targets"].items():
            if found["own"] < found["none"]:
                change = 100 * (found["own"] - found["none"]) / row["photos"]
                yield Negative(f"{row['client']}, {target}: the own file against none: {change:+.1f} points", change)


def _ratios(document: Document) -> Iterator[Negative]:
    invalid = [row for row in document["rows"] if not row["verdict"]["valid"]]
    if invalid:
        codes = sorted({reason["code"] for row in invalid for reason in row["verdict"]["reasons"]})
        yield Negative(f"{len(invalid)} of {len(document['rows'])} rows are not valid ({', '.join(codes)})")


def _overhead(document: Document) -> Iterator[Negative]:
    missed = overhead_lines(document)[0]
    if not missed.endswith("none."):
        yield Negative(missed[0].lower() + missed[1:].rstrip("."))


def _install(document: Document) -> Iterator[Negative]:
    for files, ratio in document["ratio"].items():
        if ratio["low"] > 1:
            yield Negative(
                f"import, load and first answer take {ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
                f" times as long as in bare ONNX Runtime, files {files}"
            )


def _switching(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        for switch in row["switches"]:
            if switch["share"]["low"] > 1:
                yield Negative(
                    f"{row['backbone']}, {row['runtime']}: switching {switch['what']} takes"
                    f" {switch['share']['mean']:.0%} of a recognition"
                )


def _service(document: Document) -> Iterator[Negative]:
    most = max(document["rows"], key=lambda row: int(row["clients"]))
    yield Negative(
        f"{most['clients']} requests at once wait {most['p50_s']:.1f} s in the median, one alone {most['alone_s']:.1f} s;"
        f" {sum(row['failed'] for row in document['rows'])} failed"
    )


def _trial(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if row["missed_s"] is not None:
            yield Negative(f"{row['title']}: the round that misses it takes {row['missed_s']:.0f} s")


def _android(document: Document) -> Iterator[Negative]:
    for row in sorted(document["rows"], key=lambda row: -row.get("named", 0.0)):
        if row.get("passed") is False and row["entries"]:  # without an entry it is the control
            yield Negative(f"{row['processor']}: {row['same']} of {row['answers']} answers are as in Python")
        if row.get("known") is False and row["named"] > 0:
            yield Negative(f"{row['named']:.0%} of {row['name']}, which the model does not know, get a name")


def _nothing(document: Document) -> tuple[Negative, ...]:
    return ()


def _default_bundle(document: Document) -> Iterator[Negative]:
    for row in document["rows"]:
        if row["same"] < 1:
            yield Negative(f"{row['target']} gives {row['same']:.1%} of {row['targets']} photos the label of PyTorch")


def _journal(document: Document) -> Iterator[Negative]:
    for row in document["ratios"]:
        ratio = row["ratio"]
        if row["what"] == "SQLite alone" and row["time"] == "cpu" and ratio["low"] > 1:
            range_ = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
            yield Negative(
                f"storing a photo in SQLite alone takes {ratio['mean']:.2f} ({range_}) times the processor time of the"
                f" journal, storage: {row['storage']}"
            )


_OF_STUDY: Mapping[str, Callable[[Document], Any]] = {
    "stream": _stream,
    "trade-off": _trade_off,
    "few-people": _few_people,
    "camera-roll": _camera_roll,
    "camera-roll-choices": _camera_roll,
    "mixed-folder": _mixed_folder,
    "heterogeneity": _levels,
    "gates": _contents,
    "streaming": _contents,
    "memories": _over("over_newest", "worse than the newest photos"),
    "windows": _over("over_first", "worse than the window of training"),
    "attention": _attention,
    "shuffling": _shuffling,
    "improvement": _improvement,
    "federated": _federated,
    "sensitivity": _nothing,
    "decoding": _decoding,
    "default-bundle": _default_bundle,
}
_OF_KIND: Mapping[str, Callable[[Document], Any]] = {
    "": _evaluation,
    "accuracy_of_sets": _sets,
    "accuracy_of_targets": _targets,
    "retrainings": _retrainings,
    "cuda_sections": _cuda,
    "plain_bundles": _bundles,
    "bundle_clients": _clients,
    "ratios": _ratios,
    "operators": _nothing,
    "export_times": _nothing,
    "programs": _overhead,
    "device_install": _install,
    "switching_people": _switching,
    "condensing": _nothing,
    "append_journal": _journal,
    "service": _service,
    "federate_trial": _trial,
    "android_start": _nothing,
    "android_cost": _nothing,
    "android_processors": _android,
    "android_unknown": _android,
}
