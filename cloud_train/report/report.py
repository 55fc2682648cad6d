"""What people look at: a summary in the terminal and one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from refocus.edge.files import write_file
from refocus.edge.photos import decode_photo

NAMES = {
    "original": "original backbone",
    "iciia_b": "ICIIA-B",
    "iciia_t": "ICIIA-T",
    "iciia_b_gated": "ICIIA-B, gated",
    "iciia_t_causal": "ICIIA-T, streaming",
    "iciia_t_causal_gated": "ICIIA-T, streaming, gated",
    "delivered": "delivered (gated)",
}
COLOURS = {"original": "#6b7280", "iciia_b": "#b45309", "iciia_t": "#1d4ed8", "delivered": "#15803d"}
CONTENTS = {"foreign_": "foreign history", "mixed_": "mixed history"}
ReadPhoto = Callable[[str], bytes]


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """The results document, stable in form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(results, ensure_ascii=False, indent=2) + "\n")


def print_summary(results: Mapping[str, Any]) -> None:
    """The figures by history length, methods and controls, to standard output."""
    lengths = list(next(iter(results["accuracy"].values())))
    table = Table("accuracy by history photos", *lengths, title=_title(results), title_justify="left")
    for name in methods_of(results["accuracy"]):
        table.add_row(method_name(name), *(f"{results['accuracy'][name][k]:.1%}" for k in lengths))
    table.add_section()
    for name, row in results["control"].items():
        table.add_row(control_name(name), *(f"{row[k]:.1%}" for k in lengths), style="dim")
    console = Console(width=110)
    console.print(table)
    longest, worse = lengths[-1], results["never_worse"]
    console.print(f"delivered at {longest} history photos: {points(results['gain']['delivered'][longest])}")
    for content in ("foreign", "mixed"):
        console.print(f"delivered with a {content} history, all lengths pooled: {points(worse[content])}")
    console.print("share of the ungated gain that is delivered: " + kept_text(results))
    latency = results["latency_ms"]
    console.print(
        "latency, one thread, p50: "
        + ", ".join(f"{name} {latency[name]['p50']:.2f} ms" for name in ("encoder", "head", "whole"))
    )


def print_study(document: Mapping[str, Any]) -> None:
    """A study's rows, to standard output."""
    header, rows = study_table(document)
    table = Table(*header, title=f"{document['study']} on {document['data']['source']}", title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)
    if document.get("orders"):
        header, rows = orders_table(document["orders"])
        table = Table(*header, title="what the papers found", title_justify="left")
        for row in rows:
            table.add_row(*row)
        Console(width=140).print(table)


def study_table(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a study, as people read them; differences to the plain classifier, in points."""
    rows = document["rows"]
    if document["study"] == "heterogeneity":
        header = [
            "share of clients with something in common",
            "original",
            "ICIIA alone",
            "delivered",
            "ICIIA alone, gain",
            "delivered, gain",
        ]
        return header, [
            [
                r["name"],
                *(f"{r[k]:.1%}" for k in ("original", "ungated", "delivered")),
                short_points(r["ungated_gain"]),
                short_points(r["delivered_gain"]),
            ]
            for r in rows
        ]
    if document["study"] in ("gates", "streaming"):
        lengths = list(rows[0]["own"])
        header = ["", *(f"own, {k}" for k in lengths), "mixed, pooled", "foreign, pooled"]
        cells = [
            [
                r["name"],
                *(f"{100 * r['own'][k]['mean']:+.1f}" for k in lengths),
                short_points(r["mixed"]),
                short_points(r["foreign"]),
            ]
            for r in rows
        ]
        if document["study"] == "streaming":
            header.append(f"against the first, {lengths[-1]}")
            cells = [[*cell, short_points(row["over_full"])] for cell, row in zip(cells, rows, strict=True)]
        return header, cells
    if document["study"] == "memories":
        header = [
            "photos the window is taken from",
            "original",
            "ICIIA alone",
            "delivered",
            "delivered, gain",
            "delivered, over the first",
            "ICIIA alone, over the first",
            "foreign history: delivered, gain",
            "ICIIA alone, gain",
        ]
        return header, [
            [
                f"{r['name']} of {r['photos']:,}",
                *(f"{r[k]:.1%}" for k in ("original", "ungated", "delivered")),
                *(
                    short_points(r[k])
                    for k in ("gain", "over_newest", "ungated_over_newest", "foreign", "foreign_ungated")
                ),
            ]
            for r in rows
        ]
    if document["study"] == "taper":
        header = ["", "network", "parameters", "classes selected", "accuracy", "against the first row"]
        return header, [
            [
                r["name"],
                r["network"],
                f"{r['parameters'] / 1e6:.3g} M",
                "yes" if r["selection"] else "no",
                f"{r['accuracy']:.1%}",
                short_points(r["gain"]),
            ]
            for r in rows
        ]
    if document["study"] == "federated":
        return _federated_table(document["always"], rows)
    if document["study"] == "ways":
        return ["", "judged on tasks", "accuracy", "against selection on the same tasks"], [
            [r["name"], r["judged_on"], f"{r['accuracy']:.1%}", short_points(r["gain"])] for r in rows
        ]
    if document["study"] == "bank":
        return ["", "accuracy", "against the first row"], [
            [r["name"], f"{r['accuracy']:.1%}", short_points(r["gain"])] for r in rows
        ]
    if document["study"] == "improvement":
        header = [
            "owner's photos",
            "photos seen",
            "generic model",
            "with class shares alone",
            "what serves",
            "gain",
            "by the network",
        ]
        names = {"own": "of one task", "mixed": "of all classes (control)"}
        return header, [
            [
                names[r["name"]],
                str(r["photos"]),
                f"{r['generic']:.1%}",
                f"{r['shares_alone']:.1%}",
                f"{r['served']:.1%}",
                short_points(r["gain"]),
                short_points(r["by_network"]),
            ]
            for r in rows
        ]
    if document["study"] == "baselines":
        return ["", "labels per client", "accuracy", "gain"], [
            [r["name"], f"{r['labels']:.0f}", f"{r['accuracy']:.1%}", short_points(r["gain"]) if "gain" in r else ""]
            for r in rows
        ]
    return ["block", "parameters", "accuracy", "gain"], [
        [r["name"], f"{r['parameters'] / 1e6:.2f} M", f"{r['accuracy']:.1%}", short_points(r["gain"])] for r in rows
    ]


def _federated_table(always: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = [
        "method",
        "as used",
        "deviation",
        "worst tenth",
        "one round later",
        *(f"over {name}" for name in always),
        "made worse than alone",
        "unseen clients, first round",
        "numbers sent",
        "bytes up",
        "rounds to local's",
        "GFLOP a photo",
        "s a round",
    ]
    cells = []
    for row in rows:
        unseen, rounds = row["unseen"]["used"], row["rounds_to_local"]
        later = row["unseen"]["adapted"]
        cells.append(
            [
                row["name"],
                f"{row['used']:.1%}",
                f"{100 * row['deviation']:.1f}",
                f"{row['worst_decile']:.1%}",
                "" if row["adapted"] is None else f"{row['adapted']:.1%}",
                *(short_points(row["over"][name]) for name in always),
                f"{row['made_worse']:.0%}",
                "" if unseen is None else f"{later:.1%}",
                f"{row['numbers']:,}",
                f"{row['bytes_up']:,.0f}",
                "" if rounds is None else str(rounds),
                f"{row['gigaflops']:.3f}",
                f"{row['seconds']:.2f}",
            ]
        )
    return header, cells


def orders_table(orders: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what the papers found, and whether it is seen here (the interval over clients leaves 0 out)."""
    rows = []
    for order in orders:
        found = order["difference"]
        verdict = "holds" if found["low"] > 0 else "the other way round" if found["high"] < 0 else "no difference seen"
        sent = "" if order["bytes"] is None else f"{order['bytes']:.2f}"
        rows.append([f"{order['better']} over {order['other']}", order["source"], short_points(found), verdict, sent])
    return ["order", "found by", "difference here", "", "bytes of the second over the first's"], rows


def study_plot(document: Mapping[str, Any]) -> bytes | None:
    """PNG of the studies that are more than a table: ICIIA's Figs. 6 to 8, TAPER's Figs. 3 and 4."""
    if "inner" in document:
        return mixers_plot(document["inner"])
    if document["study"] == "improvement":
        figure, axes = _figure(6.5, 3.6)
        for name, what, style in (("own", "photos of one task", "o-"), ("mixed", "photos of all classes", "s--")):
            rows = [row for row in document["rows"] if row["name"] == name]
            axes.plot([r["photos"] for r in rows], [100 * r["served"] for r in rows], style, ms=4, label=what)
            shares = [100 * r["shares_alone"] for r in rows]
            axes.plot([r["photos"] for r in rows], shares, style[1:], lw=1, label=f"{what}: class shares alone")
            axes.axhline(100 * rows[0]["generic"], color=COLOURS["original"], lw=1, ls=style[1:])
        axes.set_xlabel("unlabelled photos seen (grey: the generic model)")
        return _finished(figure, axes)
    if document["study"] == "heterogeneity":
        figure, axes = _figure(6.5, 3.6)
        levels = [float(row["name"]) for row in document["rows"]]
        for key, name, colour in (
            ("original", "original backbone", COLOURS["original"]),
            ("ungated", "ICIIA-T alone", COLOURS["iciia_t"]),
            ("delivered", "delivered (gated)", COLOURS["delivered"]),
        ):
            axes.plot(levels, [100 * row[key] for row in document["rows"]], "o-", ms=4, color=colour, label=name)
        axes.set_xlabel("share of clients whose photos have something in common")
        return _finished(figure, axes)
    if document["study"] == "partitions":
        figure, axes = _figure(6.5, 3.6)
        first = document["rows"][0]["layers"]
        for shuffle, style in ((True, "o-"), (False, "s--")):
            rows = [r for r in document["rows"] if r["layers"] == first and r["shuffle"] == shuffle]
            axes.plot(
                [r["partitions"] for r in rows],
                [100 * r["accuracy"] for r in rows],
                style,
                ms=4,
                label=f"N={first}, {'' if shuffle else 'not '}shuffled",
            )
        for row in document["rows"]:
            if row["layers"] != first:
                axes.plot([row["partitions"]], [100 * row["accuracy"]], "^", label=row["name"])
        axes.axhline(100 * document["rows"][0]["original"], color=COLOURS["original"], lw=1, label="original backbone")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("partitions P")
        return _finished(figure, axes)
    return None


def mixers_plot(inner: Mapping[str, Any]) -> bytes:
    """PNG like TAPER's Fig. 4: for each block the share of every basis, a row per kind of task; and bases' likeness."""
    from matplotlib.figure import Figure

    blocks, names = inner["mixers"], [shorten(name, 48, placeholder=" …") for name in inner["tasks"]]
    figure = Figure(figsize=(3 + 2.3 * (len(blocks) + 1), 1.2 + 0.13 * len(names)), layout="constrained")
    *places, last = figure.subplots(1, len(blocks) + 1)
    for number, (axes, mixers) in enumerate(zip(places, blocks, strict=True), 1):
        shown = axes.imshow(mixers, aspect="auto", cmap="Blues", vmin=0, vmax=max(map(max, mixers)))
        axes.set_title(f"mixers of block {number}", fontsize=9)
        axes.set_yticks(range(len(names)), names if number == 1 else [""] * len(names), fontsize=6)
        axes.set_xlabel("basis", fontsize=8)
        figure.colorbar(shown, ax=axes, location="bottom", shrink=0.8).ax.tick_params(labelsize=6)
    shown = last.imshow(inner["similarity"], cmap="RdBu_r", vmin=-1, vmax=1)
    last.set_title("likeness of bases", fontsize=9)
    figure.colorbar(shown, ax=last, location="bottom", shrink=0.8).ax.tick_params(labelsize=6)
    return _png(figure)


def _finished(figure: Any, axes: Any) -> bytes:
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=8, frameon=False)
    return _png(figure)


def short_points(gain: Mapping[str, Any]) -> str:
    """``+13.9 (+11.9 to +15.8)``, in percentage points."""
    return f"{100 * gain['mean']:+.1f} ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})"


def write_report(
    results: Mapping[str, Any], read: ReadPhoto, path: Path, studies: Sequence[Mapping[str, Any]] = ()
) -> None:
    """One HTML file that needs nothing else: pictures and style are inside.

    Args:
        studies: documents of a TAPER bank, for a section of their own.
    """
    longest = list(results["accuracy"]["original"])[-1]
    variant = results["delivered_variant"]
    gain, foreign = results["gain"]["delivered"][longest], results["gain"]["foreign_delivered"][longest]
    ungated = results["gain"][f"foreign_{variant}"][longest]
    sections = [
        "<h1>Refocus: a person's own photos make the recogniser better</h1>",
        f"<p class=lead>{_title(results)}. With {longest} of the person's own unlabelled photos the exported model gains"
        f" <b>{points(gain)}</b> over the backbone alone; with another person's photos, <b>{points(foreign)}</b>, where"
        f" it would be {points(ungated)} without the gate.</p>",
        "<h2>Accuracy against history length</h2>",
        f"<img alt='accuracy against history length' src='{_image(accuracy_plot(results))}'>",
        _accuracy_table(results),
        "<h2>What the history does for one photo</h2>",
        _strip(results["example"], read),
        "<h2>What it costs</h2>",
        f"<img alt='latency' src='{_image(latency_plot(results))}'>",
        _cost(results),
        "<h2>How it was measured</h2>",
        _method(results),
        *(part for document in studies for part in _about_bank(document)),
    ]
    body = "\n".join(sections)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Refocus report</title><style>{_STYLE}</style>\n{body}"
    )
    write_file(path, page + "\n")


def accuracy_plot(results: Mapping[str, Any]) -> bytes:
    """PNG: each method against history length, its control dashed."""
    figure, axes = _figure(7.5, 4.2)
    for name in methods_of(results["accuracy"]):
        row = results["accuracy"][name]
        width = 2.6 if name == "iciia_t" else 1.8
        axes.plot(
            [int(k) for k in row],
            [100 * v for v in row.values()],
            "o-",
            color=COLOURS.get(name),
            lw=width,
            ms=4,
            label=method_name(name),
            zorder=3 if name == "iciia_t" else 2,
        )
        for prefix, style in (("foreign_", "--"), ("mixed_", ":")):
            control = results["control"].get(f"{prefix}{name}")
            if control:
                axes.plot(
                    [int(k) for k in control],
                    [100 * v for v in control.values()],
                    style,
                    lw=1.1,
                    alpha=0.8,
                    color=COLOURS.get(name),
                    label=f"{method_name(name)}, {CONTENTS[prefix]}",
                )
    axes.set_xlabel("history photos (unlabelled)")
    axes.set_ylabel("accuracy of unseen people's photos, %")
    axes.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _png(figure)


def latency_plot(results: Mapping[str, Any]) -> bytes:
    """PNG: p50 and p90 of encoder, head and the whole recogniser."""
    figure, axes = _figure(6.0, 1.9)
    names = list(results["latency_ms"])
    p50 = [results["latency_ms"][name]["p50"] for name in names]
    p90 = [results["latency_ms"][name]["p90"] for name in names]
    axes.barh(names, p90, color="#dbeafe", label="p90")
    axes.barh(names, p50, color="#1d4ed8", height=0.5, label="p50")
    axes.invert_yaxis()
    axes.set_xlabel("ms per photo, one thread")
    axes.legend(fontsize=8, frameon=False)
    return _png(figure)


def example_plot(example: Mapping[str, Any], read: ReadPhoto) -> bytes:
    """PNG like the paper's Fig. 4: the history with its weights, the target, the answer before and after."""
    from matplotlib.figure import Figure

    photos = [*example["history"], example["photo"]]
    figure = Figure(figsize=(10.5, 2.1), layout="constrained")
    places = figure.subplots(1, len(photos) + 2, width_ratios=[1] * len(photos) + [2.4, 2.4])
    for axes, name, weight in zip(places, photos, example["attention"], strict=False):
        axes.imshow(np.asarray(decode_photo(read(name), name)), interpolation="nearest")
        kind = "to recognise" if name == example["photo"] else "history"
        axes.set_title(f"{kind}\nweight {weight:.2f}", fontsize=9)
    titles = ("before: the photo alone", "after: with its history")
    for axes, title, ranked in zip(places[-2:], titles, (example["before"], example["after"]), strict=True):
        axes.set_title(title, fontsize=9, loc="left")
        for row, (label, probability) in enumerate(ranked):
            right = label == example["label"]
            axes.text(
                0,
                0.72 - 0.3 * row,
                f"{probability:4.0%}  {label}",
                fontsize=9.5,
                transform=axes.transAxes,
                color="#15803d" if right else "#111827",
                fontweight="bold" if right else None,
            )
    for axes in places:
        axes.set_axis_off()
    return _png(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return stream.getvalue()


def _image(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def method_name(name: str) -> str:
    """What people read for a method's name in the results document."""
    return NAMES.get(name, name)


def methods_of(rows: Mapping[str, Any]) -> list[str]:
    """The methods of a document, the known ones first, in their usual order."""
    return [name for name in NAMES if name in rows] + sorted(set(rows) - set(NAMES))


def _title(results: Mapping[str, Any]) -> str:
    data = results["data"]
    seeds = len(results["seeds"])
    return (
        f"{data['source']}: {data['targets']} photos of {data['test_clients']} people never seen in training,"
        f" {seeds} seed{'s' if seeds > 1 else ''}"
    )


def control_name(name: str) -> str:
    """What people read for a control's name in the results document."""
    if name == "chance":
        return "chance (labels in another order)"
    prefix = next(prefix for prefix in CONTENTS if name.startswith(prefix))
    return f"control: {method_name(name.removeprefix(prefix))}, {CONTENTS[prefix]}".replace(" (gated)", "")


def kept_text(results: Mapping[str, Any]) -> str:
    """The share of the ungated gain that the gate delivers, where studies ask for it."""
    kept = results["never_worse"]["kept"]
    rows = [(k, kept[k]) for k in ("3", "15") if k in kept] or list(kept.items())[-1:]
    if not rows:
        return "there was no gain"
    return ", ".join(
        f"{row['mean']:.0%} at {k} history photos ({row['low']:.0%} to {row['high']:.0%})" for k, row in rows
    )


def points(gain: Mapping[str, Any], digits: int = 1) -> str:
    """A gain with its interval, in percentage points."""
    mean, low, high = (f"{100 * gain[name]:+.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} points (95 % interval {low} to {high})"


def _about_bank(document: Mapping[str, Any]) -> list[str]:
    header, rows = study_table(document)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in rows)
    table = f"<table><tr>{''.join(f'<th>{html.escape(name)}' for name in header)}{cells}</table>"
    plot = study_plot(document)
    picture = [f"<img alt='{document['study']}' src='{_image(plot)}'>"] if plot else []
    if document["study"] == "improvement":
        return ["<h2>Nobody says which classes: found in the owner's own photos</h2>", *picture, table]
    data = document["data"]
    return [
        "<h1>TAPER: a network of its own for each task</h1>",
        f"<p class=lead>One bank of {document['bases']} small networks (<code>{html.escape(document['backbone'])}</code>,"
        f" {data['classes']} classes, {data['domains']} hands), trained once. For each of {data['tasks']} tasks of"
        f" {document['ways']} classes a network was condensed in <b>{document['condense_ms']:.0f} ms</b> and"
        f" {document['weights_bytes'] / 1e3:.0f} kB, and judged on {data['targets']} photos of people nobody trained on, by"
        " the exported programs.</p>",
        *picture,
        table,
    ]


def _accuracy_table(results: Mapping[str, Any]) -> str:
    lengths = list(results["accuracy"]["original"])
    head = "".join(f"<th>{k}" for k in lengths)
    rows = [("", method_name(n), results["accuracy"][n]) for n in methods_of(results["accuracy"])]
    rows += [(" class=control", control_name(n), row) for n, row in results["control"].items()]
    cells = "".join(
        f"<tr{style}><td>{html.escape(name)}" + "".join(f"<td>{row[k]:.1%}" for k in lengths)
        for style, name, row in rows
    )
    return f"<table><tr><th>history photos{head}{cells}</table>"


def _strip(example: Mapping[str, Any] | None, read: ReadPhoto) -> str:
    """Like the paper's Fig. 4: the target, the history with its weights, the answer before and after."""
    if example is None:
        return "<p>No target of this run was put right by three history photos.</p>"
    weights = example["attention"]
    history = "".join(
        _photo(read(name), f"history, weight {weight:.2f}", 0.35 + 0.65 * weight / max(weights))
        for name, weight in zip(example["history"], weights[:-1], strict=True)
    )
    target = _photo(read(example["photo"]), f"to recognise, weight {weights[-1]:.2f}", 1.0)
    answers = _ranking("before: the photo alone", example["before"], example["label"]) + _ranking(
        "after: with three history photos", example["after"], example["label"]
    )
    return (
        f"<div class=strip>{history}<span class=arrow>+</span>{target}<span class=arrow>→</span>{answers}</div>"
        f"<p>{html.escape(example['client'])} wrote <b>{html.escape(example['label'])}</b>. Weights are the mean"
        " attention over layers and heads.</p>"
    )


def _photo(content: bytes, caption: str, opacity: float) -> str:
    source = "data:image/png;base64," + base64.b64encode(content).decode()
    return f"<figure><img class=photo style='opacity:{opacity:.2f}' src='{source}'><figcaption>{caption}</figure>"


def _ranking(title: str, ranked: Sequence[Sequence[Any]], truth: str) -> str:
    rows = "".join(
        f"<li{' class=right' if label == truth else ''}>{html.escape(label)} <b>{probability:.0%}</b>"
        for label, probability in ranked
    )
    return f"<div class=answer><i>{title}</i><ol>{rows}</ol></div>"


def _cost(results: Mapping[str, Any]) -> str:
    ratio = results["overhead"]["head_over_encoder"]
    size = next(row["head_bytes"] for row in results["bundles"] if row["variant"] == results["delivered_variant"])
    return (
        f"<p>The head, history and both classifiers included, takes {ratio['mean']:.0%} of this encoder's time"
        f" (95 % interval {ratio['low']:.0%} to {ratio['high']:.0%}, interleaved), and {size / 1e6:.2f} MB. The"
        " encoder is small, and the head recomputes its whole window for every photo.</p>"
    )


def _method(results: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<li>seed {r['seed']}, {method_name(r['variant'])}: gated by {r['gated_by']};"
        f" against PyTorch on {r['photos']} photos in sequence: largest logit difference {r['max_abs']:.1e}, same"
        f" answer on {r['top1_agreement']:.2%}"
        for r in results["bundles"]
    )
    stream, worse = results["stream"], results["never_worse"]
    rows += "".join(
        f"<li>delivered with a {content} history, all lengths pooled: {points(worse[content])}"
        for content in ("foreign", "mixed")
    )
    rows += f"<li>share of the ungated gain that is delivered: {kept_text(results)}"
    return (
        f"<ul>{rows}<li>Whole streams from an empty history, {stream['photos']} photos: delivered"
        f" {stream['delivered']:.1%}, original {stream['original']:.1%}<li>Every figure was computed by the exported"
        " bundle and the device runtime. Intervals are bootstrapped over people. Foreign history: the photos of"
        f" somebody of another domain; mixed history: photos of anybody.<li>Data fingerprint {results['data']['fingerprint'][:16]}</ul>"
    )


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#111827}
h1{font-size:1.7rem}h2{font-size:1.2rem;margin-top:2.2rem}.lead{font-size:1.1rem}img{max-width:100%}
table{border-collapse:collapse;font-size:.85rem}td,th{padding:.25rem .6rem;border-bottom:1px solid #e5e7eb;text-align:right}
td:first-child,th:first-child{text-align:left}.control{color:#6b7280}
.strip{display:flex;align-items:center;gap:.8rem;flex-wrap:wrap}figure{margin:0;text-align:center;font-size:.75rem}
.photo{width:96px;height:96px;image-rendering:pixelated;border-radius:6px}.arrow{font-size:1.6rem;color:#6b7280}
.answer{font-size:.8rem}.answer ol{margin:.2rem 0 .2rem 1rem;padding:0}.right{color:#15803d;font-weight:600}
"""
