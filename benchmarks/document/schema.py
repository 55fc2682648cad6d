"""The document that ``refocus bench`` writes: every sample, what ran, on what machine, and whether it can be trusted.

Described for readers in docs/bench-format.md; a test compares the two. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from refocus.edge.errors import RefocusError
from refocus.edge.files import write_file

SCHEMA_VERSION = 2  # 1: Refocus 0.1; without ``fastest``
KIND = "refocus bench"
MAX_DOCUMENT_BYTES = 512 * 1024**2
ReasonCode = Literal["too few samples", "spread", "drift", "clock", "throttling", "governor", "other load", "lost"]
Mode = Literal["quick", "default", "custom", "sustained", "paired", "suite", "peers"]


GROUP, BARE = "suite", "backbone"  # of a suite's rows, and the name of the row that the others stand beside


class BenchError(RefocusError):
    """A measurement or its document cannot be used: fix the flags, the device or the file."""


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all types of the document: immutable, no unknown fields."""


class Conditions(Strict, frozen=True, kw_only=True):
    """When a row is long enough: both must be met, as in MLPerf.

    Attributes:
        min_queries, min_seconds: at least so many samples, and so much time.
        warm_up: queries before the first sample.
        least: fewer samples than this are no basis for a verdict, whatever was asked for.
        max_seconds: a row is given up after this time, and its verdict says that it has too few samples.
    """

    min_queries: int
    min_seconds: float
    warm_up: int = 16
    least: int = 100
    max_seconds: float = 3600.0


class Percentile(Strict, frozen=True, kw_only=True):
    """One percentile in ms; ``supported`` where at least ten samples lie beyond it."""

    ms: float
    supported: bool


class Summary(Strict, frozen=True, kw_only=True):
    """Of all samples; nothing is trimmed."""

    count: int
    seconds: float
    mean_ms: float
    min_ms: float
    max_ms: float
    p50: Percentile
    p90: Percentile
    p99: Percentile
    p99_9: Percentile


class Observation(Strict, frozen=True, kw_only=True):
    """The machine at one moment of a row; None where it does not say.

    Attributes:
        at_s: seconds since the row began.
        busy_s: processor seconds that all cores worked since the machine started.
        own_s: processor seconds of this process and the children it waited for.
        steal_s: processor seconds that a hypervisor gave to others.
        waited_s: seconds that this process was ready to run and another one ran instead.
        clocks_mhz: of each core.
        temperature_c: of the warmest sensor.
        throttled: how often cores were slowed for heat since the machine started.
        slowed: how many parts of the machine are slowed for heat at this moment.
        yardstick_us: what a fixed piece of work takes: it grows when the clock falls, even where no file says so.
    """

    at_s: float
    busy_s: float | None = None
    own_s: float | None = None
    steal_s: float | None = None
    waited_s: float | None = None
    clocks_mhz: tuple[float, ...] = ()
    temperature_c: float | None = None
    throttled: int | None = None
    slowed: int | None = None
    yardstick_us: float | None = None


class Start(Strict, frozen=True, kw_only=True):
    """The wait for a cool device before a row (``--start-below``).

    Attributes:
        below_c: what was asked for.
        reached_c: temperature of the warmest sensor when the wait ended.
        waited_s: how long it was.
    """

    below_c: float
    reached_c: float
    waited_s: float


class Reason(Strict, frozen=True):
    """Why a row cannot be trusted, and what to do."""

    code: ReasonCode
    detail: str
    advice: str


class Verdict(Strict, frozen=True, kw_only=True):
    """``valid`` where there is no reason against; ``notes`` are worth knowing and do not decide."""

    valid: bool
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


class Row(Strict, frozen=True, kw_only=True):
    """One thing that was timed.

    Attributes:
        bundle, target: whose; target as ``onnxruntime:fp32``.
        group: which table it belongs to, as "stages" or "history length".
        name: what was timed, as "encoder" or "whole".
        at: its place on the group's axis, as "16"; "" where the group has none.
        photos: photos that one sample is for; more than one for a batch.
        samples_ms: every sample, in order.
        starts_s: when each began, since the row began.
        start: the wait for a cool device before it; None where none was asked for.
    """

    bundle: str
    target: str
    group: str
    name: str
    at: str = ""
    photos: int = 1
    conditions: Conditions
    samples_ms: tuple[float, ...]
    starts_s: tuple[float, ...]
    summary: Summary
    verdict: Verdict
    observations: tuple[Observation, ...] = ()
    start: Start | None = None


class Ratio(Strict, frozen=True, kw_only=True):
    """One thing over another, both timed in turns in one run: median ratio with its 95 % interval.

    Attributes:
        name, over: the two rows, of one group.
        ratio, low, high: 1 means equally fast.
    """

    bundle: str
    target: str
    group: str
    name: str
    over: str
    ratio: float
    low: float
    high: float


class Memory(Strict, frozen=True, kw_only=True):
    """Resident memory of a process of its own that did nothing else.

    Attributes:
        name: of one program of a suite; "": the whole bundle.
        imported_bytes: with Python and the libraries alone.
        loaded_bytes: with the bundle or the program loaded.
        peak_bytes: the most until ``photos`` were recognised.
    """

    bundle: str
    target: str
    imported_bytes: int
    loaded_bytes: int
    peak_bytes: int
    photos: int
    name: str = ""


class Energy(Strict, frozen=True, kw_only=True):
    """Energy during one row; where the device does not tell, ``joules`` is None and ``source`` says why."""

    bundle: str
    target: str
    source: str
    joules: float | None = None
    watts: float | None = None
    joules_per_photo: float | None = None


class Accuracy(Strict, frozen=True, kw_only=True):
    """Shares of right answers on the given photos, through the same programs."""

    bundle: str
    target: str
    data: str
    photos: int
    people: int
    with_history: float
    photo_alone: float
    worst_decile: float


class OperatorTime(Strict, frozen=True, kw_only=True):
    """All nodes of one operator in one profiled run.

    Attributes:
        name: in the runtime's words, as ``Conv``.
        nodes: how many there are.
        ms: their time.
    """

    name: str
    nodes: int
    ms: float


class Placed(Strict, frozen=True, kw_only=True):
    """Part of a program that one provider, delegate or compute unit had in one profiled run on this device.

    Attributes:
        role: "encoder" or "head".
        asked: whether it is the one that was asked for; false is a fallback.
        nodes: operators of the graph that it has; for TensorRT layers of the engine.
        partitions: contiguous pieces of the run in which it had control.
        ms: time of its nodes; null where the runtime does not say.
        time_share: of the program's time, 0 to 1; for Core ML its own estimate; null where nothing says so.
        operators: its time by operator, the longest first; empty where the runtime does not say.
    """

    role: str
    provider: str
    asked: bool
    nodes: int
    partitions: int
    ms: float | None = None
    time_share: float | None = None
    operators: tuple[OperatorTime, ...] = ()


class Ran(Strict, frozen=True, kw_only=True):
    """What really ran.

    Attributes:
        asked, used: provider or delegate, of the encoder.
        threads: inside one operator, those that the encoder ran on; 0: as many as the runtime takes.
        fallback: nodes that ran elsewhere than asked, with their shares, and the reasons that are known; "" where
            nothing did.
        numeric_path: runtime, version and provider that decide the last bits of a feature.
        placement: where the nodes of encoder and head ran; empty where it was not measured.
        telemetry: that the runtime sends nothing, and how that is known.
        size_bytes: of encoder and head together.
    """

    bundle: str
    target: str
    encoder_sha256: str
    head_sha256: str
    head: str
    runtime_version: str
    asked: str
    used: str
    fallback: str = ""
    threads: int
    telemetry: str
    size_bytes: int
    numeric_path: str = ""
    placement: tuple[Placed, ...] = ()


class Machine(Strict, frozen=True, kw_only=True):
    """Where it ran.

    Attributes:
        device: "cpu", "cuda", "jetson" or "android".
        id: a hash of what cannot change about the machine: two runs with one id are comparable.
        power_mode: governor, or the device's own mode; "" where it does not say.
        extra: what the device says beside.
    """

    device: str
    id: str
    system: str
    python: str
    cpu: str
    cores: int
    memory_bytes: int
    features: tuple[str, ...] = ()
    governor: str = ""
    power_mode: str = ""
    clocks_mhz: tuple[float, ...] = ()
    temperature_c: float | None = None
    virtual: bool = False
    load_average: float | None = None
    versions: dict[str, str] = {}
    extra: dict[str, str] = {}


class Photos(Strict, frozen=True, kw_only=True):
    """The photos that were recognised: the runs of two documents are comparable if they are the same."""

    source: str
    count: int
    fingerprint: str


class Counted(Strict, frozen=True, kw_only=True):
    """How large a program is.

    Attributes:
        name: of the row that timed it.
        flops: multiply-adds of one photo, as the paper counts.
        size_bytes: of the exported file.
    """

    bundle: str
    target: str
    name: str
    parameters: int
    flops: float
    size_bytes: int


class Missing(Strict, frozen=True, kw_only=True):
    """What was not measured, and why."""

    what: str
    why: str


class Paired(Strict, frozen=True, kw_only=True):
    """Two bundles in turns: B's time over A's.

    Attributes:
        answer: "B is slower", "B is faster" or "no difference seen".
        ratio, low, high: with a 99 % interval.
        loads: how often both were loaded afresh; ``by_load`` has the ratio of each.
        pairs: pairs of samples per load.
    """

    a: str
    b: str
    answer: Literal["B is slower", "B is faster", "no difference seen"]
    sentence: str
    ratio: float
    low: float
    high: float
    loads: int
    pairs: int
    by_load: tuple[float, ...]


class Fastest(Strict, frozen=True, kw_only=True):
    """The fastest measured target of a bundle that keeps accuracy.

    Attributes:
        p50, p99: of the row "whole": one photo from its file to the answer, with a full history.
        valid: whether that row is.
        agreement: share of the photos of the export that got the answer of PyTorch; null where it was not measured.
        peak_bytes: as of :class:`Memory`; null where it was not measured.
        start_ms: import, cold load and first photo of a fresh process together, the median; null where not measured.
        refused: targets that were measured and may lose accuracy, and why.
    """

    bundle: str
    target: str
    p50: Percentile
    p99: Percentile
    valid: bool
    agreement: float | None = None
    peak_bytes: int | None = None
    start_ms: float | None = None
    refused: dict[str, str] = {}


class Document(Strict, frozen=True, kw_only=True):
    """One run of ``refocus bench``."""

    schema_version: Literal[1, 2] = 2
    kind: Literal["refocus bench"] = "refocus bench"
    command: str
    refocus: str
    mode: Mode
    started: str
    seconds: float
    machine: Machine
    photos: Photos
    fastest: tuple[Fastest, ...] = ()
    ran: tuple[Ran, ...] = ()
    rows: tuple[Row, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    memory: tuple[Memory, ...] = ()
    energy: tuple[Energy, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    counted: tuple[Counted, ...] = ()
    paired: Paired | None = None
    missing: tuple[Missing, ...] = ()


def write_document(document: Document, path: Path) -> None:
    """Writes a document, by rename."""
    write_file(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def read_document(path: Path) -> Document:
    """Reads a document that ``refocus bench`` wrote.

    Raises:
        BenchError: no such file, not such a document, of a newer schema, or one whose samples do not fit together.
    """
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise BenchError(f"{path} has more than {MAX_DOCUMENT_BYTES} bytes; give what refocus bench wrote")
        content = path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path} cannot be read ({error.strerror}); give a file that refocus bench wrote") from None
    return decode_document(content, str(path))


def decode_document(content: bytes, where: str) -> Document:
    """As :func:`read_document`, of bytes; ``where`` is named in errors."""
    try:
        version = msgspec.json.decode(content, type=dict[str, object]).get("schema_version")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BenchError(f"{where} is not a document of refocus bench ({error})") from None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BenchError(f"{where} has schema {version}, this refocus reads 1 to {SCHEMA_VERSION}; update refocus")
    try:
        document = msgspec.json.decode(content, type=Document)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BenchError(f"{where} is not a document of refocus bench ({error}); measure again") from None
    for row in document.rows:
        if len(row.samples_ms) != len(row.starts_s) or len(row.samples_ms) != row.summary.count or not row.samples_ms:
            raise BenchError(
                f"{where}: the row {row.group} {row.name} {row.at} has {len(row.samples_ms)} samples,"
                f" {len(row.starts_s)} starts and says {row.summary.count}; measure again"
            )
    return document
