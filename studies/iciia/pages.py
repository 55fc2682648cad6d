"""Pages of the ICIIA studies: columns, texts and charts."""

from __future__ import annotations

from collections.abc import Callable

from refocus.cloud_train.evaluate import page
from studies.iciia.rivals import LABELLED


def heterogeneity_plot(document: page.Document) -> bytes:
    """Plot accuracy by heterogeneity, like Fig. 6, as PNG."""
    figure, axes = page.new_figure()
    rows = document["rows"]
    levels = [float(row["name"]) for row in rows]
    axes.plot(levels, [100 * row["original"] for row in rows], "o-", ms=4, color=page.GREY, label="original backbone")
    for number, method in enumerate(rows[0]["methods"]):
        style = "s--" if method["name"] in LABELLED else "o-"
        accuracies = [100 * row["methods"][number]["accuracy"] for row in rows]
        axes.plot(levels, accuracies, style, ms=4, label=method["name"])
    return page.accuracy_png(figure, axes, "share of clients whose photos have something in common")


def _levels(document: page.Document) -> page.Columns:
    """Return columns of the original accuracy and each method's gain."""

    def gain_of(number: int) -> Callable[[page.Row], str]:
        return lambda row: page.short_points(row["methods"][number]["gain"])

    methods = [method["name"] for method in document["rows"][0]["methods"]]
    return {
        "share of clients with something in common": page.text("name"),
        "original": page.percent("original"),
        **{f"{name}, gain": gain_of(number) for number, name in enumerate(methods)},
    }


def partitions_plot(document: page.Document) -> bytes:
    """Plot accuracy by partitions, like Figs. 7 and 8, as PNG."""
    figure, axes = page.new_figure()
    first = document["rows"][0]["layers"]
    for shuffle, style in ((True, "o-"), (False, "s--")):
        rows = [row for row in document["rows"] if row["layers"] == first and row["shuffle"] == shuffle]
        accuracies, name = [100 * row["accuracy"] for row in rows], f"N={first}, {'' if shuffle else 'not '}shuffled"
        axes.plot([row["partitions"] for row in rows], accuracies, style, ms=4, label=name)
    for row in document["rows"]:
        if row["layers"] != first:
            axes.plot([row["partitions"]], [100 * row["accuracy"]], "^", label=row["name"])
    axes.axhline(100 * document["rows"][0]["original"], color=page.GREY, lw=1, label="original backbone")
    axes.set_xscale("log", base=2)
    return page.accuracy_png(figure, axes, "partitions P")


def _own(length: str) -> Callable[[page.Row], str]:
    return lambda row: f"{100 * row['own'][length]['mean']:+.1f}"


def _by_history(document: page.Document) -> page.Columns:
    """Return columns of the gains by kind of history."""
    lengths = list(document["rows"][0]["own"])
    return {
        "": page.text("name"),
        **{f"own, {length}": _own(length) for length in lengths},
        "mixed, pooled": page.gain("mixed"),
        "foreign, pooled": page.gain("foreign"),
        **({f"against the first, {lengths[-1]}": page.gain("over_full")} if document["study"] == "streaming" else {}),
    }


def _about_shuffling(document: page.Document) -> str:
    shuffled, plain = document["rows"]
    over, recipe = plain["over_shuffled"], document["recipe"]
    if over["low"] > 0:
        verdict = "is better without shuffling"
    elif over["high"] < 0:
        verdict = "is better with shuffling"
    else:
        verdict = "is neither better nor worse without shuffling, as far as these people tell"
    return (
        f"The block {verdict}: {page.short_points(over)} points. {shuffled['layers']} layers of"
        f" {shuffled['partitions']} partitions, at most {recipe['epochs']} epochs; the same target photos of"
        f" {document['data']['test_clients']} clients; {page.seeds_line(document)}."
    )


_BLOCKS = {
    "block": page.text("name"),
    "parameters": lambda row: f"{row['parameters'] / 1e6:.2f} M",
    "accuracy": page.percent("accuracy"),
    "gain": page.gain(),
}
PAGES = {
    "heterogeneity": page.StudyPage(
        "accuracy by cross-client heterogeneity (ICIIA Fig. 6)", _levels, plot=heterogeneity_plot
    ),
    "partitions": page.StudyPage(
        "partitions, layers and shuffling (ICIIA Figs. 7 and 8)", _BLOCKS, plot=partitions_plot
    ),
    "heads": page.StudyPage("the number of attention heads (ICIIA appendix A)", _BLOCKS),
    "ablations": page.StudyPage("what each ingredient is worth (ICIIA Table 4)", _BLOCKS),
    "shuffling": page.StudyPage(
        "whether partitions are shuffled between the layers of the shipped block (ICIIA Table 4)",
        {**_BLOCKS, "against shuffled": page.gain("over_shuffled")},
        _about_shuffling,
    ),
    "baselines": page.StudyPage(
        "against methods that get labels on the device (ICIIA Table 3)",
        {
            "": page.text("name"),
            "labels per client": page.text("labels", ".0f"),
            "accuracy": page.percent("accuracy"),
            "gain": lambda row: page.gain()(row) if "gain" in row else "",
        },
    ),
    "gates": page.StudyPage("ideas for never being worse than the photo alone", _by_history),
    "streaming": page.StudyPage(
        "looking back only, and one classifier for both answers, against full attention", _by_history
    ),
}
