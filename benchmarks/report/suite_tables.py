"""The tables of ``refocus bench suite``, in Markdown, from its documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from refocus.benchmarks.document.schema import BARE, GROUP, Document, Ratio, Row
from refocus.benchmarks.report.text import cells, markdown_table, milliseconds, reasons

_TABLE_1 = (
    "backbone, target | parameters | FLOPs | ms | ICIIA-B FLOPs | wall clock | ICIIA-T FLOPs | wall clock | streaming"
)
_STARTS = (
    "backbone | target | import | load | first photo | second photo | memory without a program | + backbone"
    " | most until answered | + ICIIA-T | + streaming | + native | J a photo"
)
_METHODS = "backbone | target | method | p50 ms | p90 | over the backbone | file | verdict"
_HEADS = "iciia_t", "iciia_t_streaming", "iciia_t_native_streaming"

ON_ALL_CORES = " ExecuTorch's rows ran on all cores of their machine, with their block and with their backbone alone."


def tables(documents: Sequence[Document], paper: Mapping[str, float]) -> Iterator[str]:
    """All tables, each with what its figures are.

    Args:
        paper: multiply-adds that the ICIIA paper has, by backbone.
    """
    yield from table_1(documents, paper)
    yield from ("", "## Backbones by target, and what personalisation adds", "")
    yield from table_of_targets(documents)
    yield from ("", "## Start and memory", "")
    yield from table_of_starts(documents)
    yield from ("", "## All methods", "")
    yield from table_of_methods(documents)
    yield from ("", "## Verdicts", "")
    rows = [row for document in documents for row in document.rows]
    yield f"Of {len(rows)} rows {sum(row.verdict.valid for row in rows)} are valid. The others, by reason:"
    yield ""
    yield from (f"- {line}" for line in reasons(rows))


def table_1(documents: Iterable[Document], paper: Mapping[str, float]) -> Iterator[str]:
    """The paper's Table 1 with a wall-clock column beside the multiply-adds."""
    documents = list(documents)
    letters = _machines(documents)
    rows = [row for document in documents for row in _table_1_rows(document, paper, _on(document, letters))]
    yield from markdown_table(_TABLE_1, rows)
    yield ""
    yield (
        "FLOPs are multiply-adds, as in the paper; ICIIA with N = 3 layers over a window of W = 16, without its"
        " classifier. Wall clock is over the backbone, timed in turns in one process, one thread; 95 % interval."
        + (ON_ALL_CORES if any(map(_on_all_cores, documents)) else "")
    )
    if len(letters) > 1:
        yield ""
        yield "Times of different machines do not compare; ratios are of one. " + "; ".join(
            f"{letter}: {', '.join(machine)}" for machine, letter in letters.items()
        )


def _on_all_cores(document: Document) -> bool:
    """Whether ExecuTorch took all cores, as it did in documents that do not say otherwise."""
    of_executorch = any(row.target.startswith("executorch") for row in document.rows)
    return of_executorch and "executorch_threads" not in document.machine.extra


def _machines(documents: Iterable[Document]) -> dict[tuple[str, ...], str]:
    """A letter for each kind of machine, A for that of the most documents."""
    found = Counter(map(_machine, documents))
    return {machine: chr(ord("A") + number) for number, (machine, _) in enumerate(found.most_common())}


def _machine(document: Document) -> tuple[str, ...]:
    """Kind of machine a document was measured on: its processor's name and instructions, and its cores."""
    machine = document.machine
    return machine.cpu, f"{machine.cores} cores", " ".join(machine.features)


def _on(document: Document, letters: Mapping[tuple[str, ...], str]) -> str:
    """Letter of a document's machine, to stand behind its target; "" where all machines are alike."""
    return f", {letters[_machine(document)]}" if len(letters) > 1 else ""


def _table_1_rows(document: Document, paper: Mapping[str, float], where: str) -> Iterator[tuple[str, ...]]:
    rows, counted = _timed(document), {c.name: c for c in document.counted}
    if BARE not in rows:
        for missing in document.missing:
            yield missing.what, f"not measured: {missing.why}", *("",) * 7
        return
    bare, size, found = rows[BARE], counted[BARE], list[str]()
    for method in ("iciia_b", "iciia_t"):
        block = counted.get(method)
        found.append(f"{_si(block.flops)} ({block.flops / size.flops:.2%})" if block else "not measured")
        found.append(_share(document, method))
    said = f" (paper: {_si(paper[bare.bundle])})" if bare.bundle in paper else ""
    first = f"{bare.bundle}, {bare.target}{where}{said}", _si(size.parameters), _si(size.flops), cells(bare)[3]
    yield *first, *found, _share(document, "iciia_t_streaming")


def table_of_targets(documents: Sequence[Document]) -> Iterator[str]:
    """Milliseconds of every backbone for every target, with what ICIIA-T adds to it by its quickest way.

    Each machine has its own table: times of different ones do not compare.
    """
    letters = _machines(documents)
    for machine, letter in letters.items():
        if len(letters) > 1:
            yield from (f"Machine {letter}:", "")
        yield from _targets_of_machine([document for document in documents if _machine(document) == machine])
        yield ""
    yield (
        "p50 in ms, and what a photo costs more with ICIIA-T, streaming, by the native head. Columns come from"
        " processes of their own: only large differences between them mean something."
    )


def _targets_of_machine(documents: Iterable[Document]) -> Iterator[str]:
    by_pair = {(row.bundle, row.target): d for d in documents for row in _timed(d).values() if row.name == BARE}
    backbones, targets = (list(dict.fromkeys(names)) for names in zip(*by_pair, strict=True)) if by_pair else ([], [])
    found = []
    for backbone in backbones:
        line = [backbone]
        for target in targets:
            document = by_pair.get((backbone, target))
            line.append(_ms_and_added(document) if document else "")
        found.append(line)
    yield from markdown_table(" | ".join(["backbone", *targets]), found)


def _ms_and_added(document: Document) -> str:
    bare = _timed(document)[BARE]
    share = _ratio(document, "iciia_t_native_streaming")
    return f"{cells(bare)[3]}" + (f", +{share.ratio:.2%}" if share else "")


def table_of_starts(documents: Sequence[Document]) -> Iterator[str]:
    """Start times, memory and energy of processes that load one program and answer photos."""
    found, letters = [], _machines(documents)
    for document in documents:
        starts = {row.name: row for row in document.rows if row.group == "start" and row.at == BARE}
        memory = {one.name: one for one in document.memory}
        if BARE not in memory or not starts:
            continue
        base = memory[BARE]
        times = (median(starts[name].samples_ms) for name in ("import", "cold load", "first photo", "second photo"))
        added = (memory[n].loaded_bytes - memory[n].imported_bytes if n in memory else None for n in (BARE, *_HEADS))
        whole, *heads = ("not measured" if size is None else f"{max(0, size) / 1e6:.1f} MB" for size in added)
        most = f"{base.peak_bytes / 1e6:.0f} MB"
        first = base.bundle, base.target + _on(document, letters), *(milliseconds(value) for value in times)
        joules = next((one.joules_per_photo for one in document.energy), None)
        energy = "not measured" if joules is None else f"{joules:.3f}"
        found.append((*first, f"{base.imported_bytes / 1e6:.0f} MB", whole, most, *heads, energy))
    yield from markdown_table(_STARTS, found)
    yield ""
    sources = {energy.source for document in documents for energy in document.energy}
    yield from (f"Energy: {source}. " for source in sorted(sources))
    yield (
        "Medians in ms of fresh processes with their files in the page cache, too few for percentiles. Memory is"
        " resident, of processes that load one program each: Python with the runtime, then what the program adds to it."
        " ExecuTorch's package for Python imports torch."
    )


def table_of_methods(documents: Sequence[Document]) -> Iterator[str]:
    """Every method of every pair: time, ratio and verdict."""
    found: list[tuple[str, ...]] = []
    letters = _machines(documents)
    for document in documents:
        sizes = {c.name: c.size_bytes for c in document.counted}
        for row in document.rows:
            if row.group == "start":
                continue
            _, _, _, p50, p90, *_, verdict = cells(row)
            ratio = _share(document, row.name) if row.group == GROUP and row.name != BARE else ""
            size = f"{sizes[row.name] / 1e6:.1f} MB" if sizes.get(row.name) else ""
            found.append((row.bundle, row.target + _on(document, letters), row.name, p50, p90, ratio, size, verdict))
        found += [(lacks.what, "", "", "", "", f"not measured: {lacks.why}", "", "") for lacks in document.missing]
    yield from markdown_table(_METHODS, found)


def _timed(document: Document) -> dict[str, Row]:
    return {row.name: row for row in document.rows if row.group == GROUP}


def _ratio(document: Document, name: str) -> Ratio | None:
    return next((r for r in document.ratios if r.group == GROUP and r.name == name), None)


def _share(document: Document, name: str) -> str:
    found = _ratio(document, name)
    return f"{found.ratio:.2%} ({found.low:.2%} to {found.high:.2%})" if found else "not measured"


def _si(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
