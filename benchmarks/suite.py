"""The suite: backbones × targets, each pair in a process of its own; what is there is not measured again.

What the pairs are is ``benchmarks/suite.toml``. Who makes the programs is not known here: networks and methods are not
of this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from refocus.benchmarks.document.schema import BenchError, Conditions, Document, read_document
from refocus.benchmarks.report.suite_tables import tables
from refocus.edge.bundle import find_named_target

BUILT_IN = Path(__file__).with_name("suite.toml")
TABLE = "table1.md"


class Backbone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backbone of the suite.

    Attributes:
        methods: names that the maker of programs knows, without those of every backbone.
        partitions: P of ICIIA-T.
        paper: its name in the paper's Table 1; "" where it is not in it.
    """

    name: str
    methods: tuple[str, ...] = ()
    partitions: int = 256
    paper: str = ""


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``suite.toml`` says.

    Attributes:
        methods: of every backbone; :func:`read_suite` puts them before its own.
        paper: Table 1 of the ICIIA paper, of the built-in suite, which every other one may refer to: parameters and
            multiply-adds by the paper's name of the backbone and by "backbone", "iciia_b" or "iciia_t".
    """

    schema_version: int
    targets: tuple[str, ...]
    backbone: tuple[Backbone, ...]
    methods: tuple[str, ...] = ()
    paper: dict[str, dict[str, tuple[float, float]]] = {}


@dataclass(frozen=True)
class Pair:
    """One backbone for one target."""

    backbone: Backbone
    target: str

    @property
    def file(self) -> str:
        return f"{self.backbone.name}-{self.target.replace(':', '-')}.json"


def read_suite(path: Path = BUILT_IN) -> Suite:
    """Reads and checks a suite.

    Raises:
        BenchError: not such a file, another schema, or a name of the paper's table that is not in it.
    """
    import tomllib

    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), Suite)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not a suite ({error}); see {BUILT_IN.name} of this version") from None
    if found.schema_version != 1:
        raise BenchError(f"{path} has schema {found.schema_version}, this refocus reads 1; update refocus")
    known = {} if path == BUILT_IN else read_suite().paper
    backbones = tuple(msgspec.structs.replace(b, methods=(*found.methods, *b.methods)) for b in found.backbone)
    found = msgspec.structs.replace(found, backbone=backbones, paper={**known, **found.paper})
    for name in (backbone.paper for backbone in found.backbone if backbone.paper):
        if name not in found.paper:
            raise BenchError(f"{path}: {name} is not in the paper's Table 1; it has {', '.join(found.paper)}")
    return found


def pairs(suite: Suite, backbones: Sequence[str] = (), targets: Sequence[str] = ()) -> list[Pair]:
    """All pairs, or those of the given names.

    Raises:
        BenchError: a name that the suite has not.
    """
    known = [backbone.name for backbone in suite.backbone]
    for name in backbones:
        if name not in known:
            raise BenchError(f"--backbones {name}: the suite has {', '.join(known)}")
    asked = {target: find_named_target(target, suite.targets) for target in targets}
    for target, found in asked.items():
        if not found:
            raise BenchError(f"--to {target}: the suite has {', '.join(suite.targets)}")
    return [
        Pair(backbone, target)
        for backbone in suite.backbone
        if not backbones or backbone.name in backbones
        for target in suite.targets
        if not asked or target in asked.values()
    ]


def left_to_do(
    chosen: Sequence[Pair], out: Path, say: Callable[[str], object], doing: str = ""
) -> Iterator[tuple[Pair, Path]]:
    """The pairs that have no document yet, with its path; each is told before it is given.

    Args:
        doing: for what is told, as "exporting ".
    """
    for number, pair in enumerate(chosen, 1):
        path = out / pair.file
        if not path.exists():
            say(f"{number} of {len(chosen)}: {doing}{pair.backbone.name} {pair.target}")
            yield pair, path


def run_suite(
    chosen: Sequence[Pair],
    out: Path,
    measure: Callable[[Pair, Path], None],
    say: Callable[[str], object] = lambda _: None,
) -> dict[str, Document]:
    """Measures the pairs that are not there yet, and writes the table after each.

    Args:
        out: folder of the documents, one per pair.
        measure: writes the document of a pair to a path; one that cannot be measured gets a document without rows,
            whose ``missing`` says why, so that the table goes on.

    Returns:
        all documents of the folder that are of the suite, by file name.
    """
    out.mkdir(parents=True, exist_ok=True)
    for pair, path in left_to_do(chosen, out, say):
        measure(pair, path)
        write_table(out)
    write_table(out)
    return read_pairs(out)


def read_pairs(out: Path) -> dict[str, Document]:
    """The suite's documents of a folder by file name."""
    found = {path.name: read_document(path) for path in sorted(out.glob("*.json"))}
    return {name: document for name, document in found.items() if document.mode == "suite"}


def write_table(out: Path) -> None:
    """Writes the tables of all documents of a folder as ``table1.md``."""
    documents = [*read_pairs(out).values()]
    (out / TABLE).write_text("\n".join(tables(documents, paper_flops())) + "\n")


def paper_flops() -> dict[str, float]:
    """The multiply-adds that the paper has for a backbone of the built-in suite."""
    suite = read_suite()
    return {backbone.name: suite.paper[backbone.paper]["backbone"][1] for backbone in suite.backbone if backbone.paper}


def conditions_of(quick: bool) -> Conditions:
    """Of each row of the suite."""
    if quick:
        return Conditions(min_queries=100, min_seconds=1.0, warm_up=8, max_seconds=4.0)
    return Conditions(min_queries=256, min_seconds=10.0, warm_up=16)


def as_json(pair: Pair, **more: Any) -> bytes:
    """A pair as another process is asked for it."""
    return msgspec.json.encode({"backbone": pair.backbone, "target": pair.target, **more})
