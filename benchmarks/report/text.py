"""A document as tables: for a terminal, and as Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from refocus.benchmarks.document.schema import Document, Paired, Percentile, Ratio, Row, Verdict

RATIO_HEADINGS = ("group", "what", "over", "ratio", "95 % interval")
RATIO_NOTE = "in brackets: one of the two rows is not valid"
MOST_OPERATORS = 3  # named of a part
HEADINGS = ("group", "what", "at", "p50 ms", "p90", "p99", "p99.9", "samples", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """One row, a cell per heading. A percentile that the samples do not support stands in brackets."""
    s = row.summary
    shown = tuple(map(_point, (s.p50, s.p90, s.p99, s.p99_9)))
    per_photo = f"{row.name}, {row.photos} photos" if row.photos > 1 else row.name
    return (row.group, per_photo, row.at, *shown, str(s.count), verdict_text(row.verdict))


def _point(percentile: Percentile) -> str:
    return milliseconds(percentile.ms) if percentile.supported else f"({milliseconds(percentile.ms)})"


def fastest_lines(document: Document) -> Iterator[str]:
    """Yield the figures of the fastest target of each bundle."""
    for one in document.fastest:
        same = "parity not measured" if one.agreement is None else f"{one.agreement:.1%} of answers as in PyTorch"
        yield f"{one.bundle}: fastest target that keeps accuracy: {one.target} ({same})"
        valid = "valid" if one.valid else "not valid"
        yield f"  photo to answer: p50 {_point(one.p50)} ms, p99 {_point(one.p99)} ms ({valid})"
        memory = f"{one.peak_bytes / 1e6:.0f} MB at most" if one.peak_bytes else "not measured"
        start = f"{milliseconds(one.start_ms)} ms to the first answer" if one.start_ms else "not measured"
        yield f"  memory: {memory}; start: {start}"
        yield from (f"  not taken: {target}: {why}" for target, why in one.refused.items())


def ratio_cells(r: Ratio, rows: Sequence[Row]) -> tuple[str, ...]:
    """One ratio, a cell per heading. Its figures stand in brackets where a row of its two is not valid."""
    of_it = [row for row in rows if (row.bundle, row.target, row.group) == (r.bundle, r.target, r.group)]
    valid = all(row.verdict.valid for row in of_it if {row.name, row.at} & {r.name, r.over})
    figures = f"{r.ratio:.3f}", f"{r.low:.3f} to {r.high:.3f}"
    return (r.group, f"{r.name} ({r.bundle} {r.target})", r.over, *(figures if valid else map("({})".format, figures)))


def milliseconds(value: float) -> str:
    """Three significant digits, and nothing finer than a microsecond."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def verdict_text(verdict: Verdict) -> str:
    return "valid" if verdict.valid else ", ".join(reason.code for reason in verdict.reasons)


def reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Each kind of reason once, with how many rows it holds for, what the first of them shows, and what to do."""
    told: dict[str, tuple[str, str, int]] = {}
    for row in rows:
        for reason in row.verdict.reasons:
            detail, what, count = told.get(reason.code, (reason.detail, reason.advice, 0))
            told[reason.code] = detail, what, count + 1
    for code, (detail, what, count) in told.items():
        yield f"{code} ({count} of {len(rows)} rows; {detail}): {what}"


def facts(document: Document) -> Iterator[str]:
    """What ran where, one line each."""
    machine = document.machine
    where = f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB, {machine.system}"
    mode = machine.power_mode or machine.governor or "governor unknown"
    yield f"{where}{', a virtual machine' if machine.virtual else ''}; {mode}; load {machine.load_average or 0:.1f}"
    for ran in document.ran:
        line = f"{ran.bundle} {ran.target}: {ran.runtime_version} on {ran.used}, {ran.threads} threads"
        yield f"{line}; telemetry {ran.telemetry}" + (f"; fell back: {ran.fallback}" if ran.fallback else "")
        for part in ran.placement:
            time = f", {part.time_share:.0%} of its time" if part.time_share is not None else ""
            pieces = f" in {part.partitions} pieces" if part.partitions > 1 else ""
            most = ", ".join(f"{one.nodes} {one.name} {one.ms:.2f} ms" for one in part.operators[:MOST_OPERATORS])
            line = f"{ran.bundle} {ran.target}: {part.role}: {part.nodes} nodes{time} on {part.provider}{pieces}"
            yield line + (f"; most of it: {most}" if most else "")
    for memory in document.memory:
        yield (
            f"{memory.bundle} {memory.target}: {memory.peak_bytes / 1e6:.0f} MB at most, of which"
            f" {memory.imported_bytes / 1e6:.0f} MB before a bundle is loaded"
        )
    for energy in document.energy:
        joules = f"{energy.joules_per_photo:.3f} J a photo, " if energy.joules_per_photo is not None else ""
        yield f"{energy.bundle} {energy.target}: energy: {joules}{energy.source}"
    for accuracy in document.accuracy:
        yield (
            f"{accuracy.bundle} {accuracy.target}: {accuracy.with_history:.2%} right, photo alone"
            f" {accuracy.photo_alone:.2%}, worst tenth of people {accuracy.worst_decile:.2%}"
            f" ({accuracy.photos} photos of {accuracy.people} people, {accuracy.data})"
        )
    for missing in document.missing:
        yield f"not measured: {missing.what}: {missing.why}"


def print_document(document: Document) -> None:
    """The whole table on a terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, 130)  # a row in pieces cannot be read
    for line in fastest_lines(document):
        console.print(line, highlight=False, markup=False)
    for bundle, target in dict.fromkeys((row.bundle, row.target) for row in document.rows):
        table = Table(*HEADINGS, title=f"{bundle} {target}")
        for row in document.rows:
            if (row.bundle, row.target) == (bundle, target):
                table.add_row(*cells(row), style="" if row.verdict.valid else "dim")
        console.print(table)
    if document.ratios:
        table = Table(*RATIO_HEADINGS, title="timed in turns in one run", caption=RATIO_NOTE)
        for ratio in document.ratios:
            table.add_row(*ratio_cells(ratio, document.rows))
        console.print(table)
    if document.paired is not None:
        console.print(paired_text(document.paired), highlight=False, markup=False)
    for line in (*facts(document), *reasons(document.rows)):
        console.print(line, highlight=False, markup=False)


def paired_text(paired: Paired) -> str:
    """The answer, and which bundle is A and which B; a document has these letters before their names already."""
    return f"A is {paired.a.removeprefix('A ')}, B is {paired.b.removeprefix('B ')}: {paired.sentence}"


_README = (
    "bundle | target | decode and all, p50 / p90 | encoder | head | overhead | cold load | memory | right | verdict"
)


def markdown(documents: dict[str, Document]) -> str:
    """The table for a README: the rows that a user feels, one line per bundle and target."""
    found = [_readme_cells(document, ran.bundle, ran.target) for document in documents.values() for ran in document.ran]
    machines = {f"{d.machine.cpu}, {d.machine.cores} cores" for d in documents.values()}
    note = (
        f"Milliseconds on {'; '.join(sorted(machines))}. Overhead: all but decoding, over the bare encoder in the"
        " same run. Brackets: too few samples for that percentile."
    )
    return "\n".join([*markdown_table(_README, found), "", note])


def markdown_table(headings: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown; the headings with bars between them."""
    yield f"| {headings} |"
    yield "|---" * len(headings.split("|")) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _readme_cells(document: Document, bundle: str, target: str) -> tuple[str, ...]:
    rows = {(r.group, r.name): r for r in document.rows if (r.bundle, r.target) == (bundle, target)}
    ratios = {(r.group, r.name): r for r in document.ratios if (r.bundle, r.target) == (bundle, target)}
    memories = {(m.bundle, m.target): m for m in document.memory}
    accuracies = {(a.bundle, a.target): a for a in document.accuracy}
    whole, ratio = rows.get(("stages", "whole")), ratios.get(("overhead", "recogniser"))
    memory, right = memories.get((bundle, target)), accuracies.get((bundle, target))
    unknown = "not measured"
    return (
        bundle,
        target,
        f"{cells(whole)[3]} / {cells(whole)[4]}" if whole else unknown,
        *(cells(rows[key])[3] if key in rows else unknown for key in (("stages", "encoder"), ("stages", "head"))),
        f"{ratio.ratio - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})" if ratio else unknown,
        cells(rows["start", "cold load"])[3] if ("start", "cold load") in rows else unknown,
        f"{memory.peak_bytes / 1e6:.0f} MB" if memory else unknown,
        f"{right.with_history:.1%}" if right else unknown,
        verdict_text(whole.verdict) if whole else unknown,
    )
