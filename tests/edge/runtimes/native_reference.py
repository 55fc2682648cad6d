"""The native head written out in numpy, float64, and random heads: what the C must agree with.

It follows cloud_train/methods/iciia/{block,gate}.py, not the C: weights as they are trained, statistics as the gate
reads them in training.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refocus.edge.bundle import Artifact, Tensor, encode_tensors
from refocus.edge.runtimes.base import Source
from refocus.edge.runtimes.native_format import CAUSAL, NATIVE_PRECISIONS, SEVERAL, SHUFFLE, NativeConfig
from refocus.export.targets.native import pack

STATISTICS = 16


@dataclass
class Case:
    """A head, one photo, and what is known of those before it; arrays by the program's names."""

    config: NativeConfig
    tensors: dict[str, np.ndarray]  # as refocus.export.targets.native.pack takes them
    inputs: dict[str, np.ndarray]


def random_config(rng: np.random.Generator) -> NativeConfig:
    """Any head: widths that fill no vector, more partitions than a tile or fewer, none of the history or too much."""
    size, heads = int(rng.integers(1, 7)), int(rng.choice([1, 1, 2, 3, 4]))
    partitions = int(rng.choice([1, 1, 2, 3, 5, 15, 16, 17, 20, 32, 33]))
    width = partitions * size * heads
    streaming, causal = bool(rng.integers(2)), bool(rng.integers(2))
    layers = int(rng.integers(1, 4)) if causal or not streaming else 1
    window = int(rng.integers(2, 9))
    traits = int(rng.choice([0, 1, 5, 16, 19]))
    return NativeConfig(
        version=1,
        form=int(streaming),
        width=width,
        signature=int(rng.choice([0, 12])),
        partitions=partitions,
        layers=layers,
        heads=heads,
        window=window,
        rows=layers * (window - 1) if causal or streaming else window - 1,
        classes=int(rng.choice([1, 2, 15, 16, 17, 40])),
        traits=traits,
        hidden=int(rng.choice([1, 8, 17, 64])) if traits else 0,
        classifier=int(rng.integers(3)),
        flags=SHUFFLE * int(rng.random() < 0.8) + CAUSAL * causal + SEVERAL * int(rng.random() < 0.3),
        precision=int(rng.integers(3)),
        warm_up=0 if traits else int(rng.integers(0, 6)),
    )


def random_case(config: NativeConfig, rng: np.random.Generator, length: int | None = None) -> Case:
    """Ordinary numbers for a head and a photo."""
    c, size = config, config.width // config.partitions
    row = c.width + c.signature

    def normal(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    tensors = {}
    for n in range(c.layers):
        for name, k in (("qkv", 3), ("out", 1), ("expand", 1), ("contract", 1)):
            tensors[f"{n}.{name}.weight"] = normal(c.partitions, k * size, size, scale=size**-0.5)
            tensors[f"{n}.{name}.bias"] = normal(k * c.width, scale=0.1)
        for name in ("attention_norm", "feed_forward_norm"):
            tensors[f"{n}.{name}.weight"] = 1 + normal(c.width, scale=0.1)
            tensors[f"{n}.{name}.bias"] = normal(c.width, scale=0.1)
    names = ["plain"] + (["own"] if c.classifier else [])
    for name in names:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = normal(c.classes, c.width, scale=0.3), normal(c.classes)
    if c.traits:
        tensors["trait.weight"], tensors["trait.bias"] = normal(c.traits, row, scale=0.1), normal(c.traits, scale=0.1)
        between = rng.uniform(0.1, 3, c.traits)
        tensors["gate.between"] = between.astype(np.float32)
        tensors["gate.inside"] = (1 / (1 + between)).astype(np.float32)
        tensors["gate.log_inside"] = np.log1p(between).astype(np.float32)
        tensors["gate.expand.weight"] = normal(c.hidden, STATISTICS + 1, scale=0.2)
        tensors["gate.expand.bias"] = normal(c.hidden, scale=0.1)
        tensors["gate.decide.weight"] = normal(1, c.hidden, scale=0.3)
        tensors["gate.decide.bias"] = normal(1)
    shapes, _ = c.shapes()
    inputs = {name: normal(*shape) for name, shape in shapes.items() if name != "history_length"}
    length = int(rng.integers(0, 2 * c.rows + 2)) if length is None else length
    inputs["history_length"] = np.array([length])
    return Case(c, tensors, inputs)


def artifact_of(config: NativeConfig) -> Artifact:
    """The manifest's entry of a head."""
    inputs, outputs = config.shapes()
    types = {"history_length": "int64"}
    return Artifact(
        role="head",
        runtime="native",
        precision=NATIVE_PRECISIONS[config.precision],
        file="head.native.safetensors",
        sha256="0" * 64,
        size_bytes=1,
        inputs=tuple(Tensor(name=n, dtype=types.get(n, "float32"), shape=s) for n, s in inputs.items()),
        outputs=tuple(Tensor(name=n, dtype="float32", shape=s) for n, s in outputs.items()),
        min_runtime_version="1",
        producer={},
        head="head",
        accepts=("0" * 64,),
    )


def source_of(case: Case, variant: str = "") -> Source:
    """The head's file, as a runtime is given it."""
    content = b"".join(encode_tensors(pack(case.config, case.tensors).tensors()))
    return Source({"": content}, artifact_of(case.config), provider=variant)


def difference(case: Case, found: dict[str, np.ndarray]) -> float:
    """The largest difference to the reference, relative where numbers are above 1; not a number where one is missing."""
    wanted = answer(case)
    if found.keys() != wanted.keys() or any(found[name].shape != value.shape for name, value in wanted.items()):
        return float("nan")
    return max(float(np.abs(found[n] - value).max() / max(1.0, np.abs(value).max())) for n, value in wanted.items())


def furthest(command: Sequence[object], count: int) -> float:
    """Runs random heads through a process of ``native_driver.c``; the largest difference from the reference."""
    cases = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        cases.append(random_case(random_config(rng), rng))
    given = b"".join(map(_as_bytes, cases))
    done = subprocess.run(list(map(str, command)), input=given, capture_output=True, check=True)
    numbers, differences = np.frombuffer(done.stdout, dtype="<f4"), []
    for case in cases:
        found = {}
        for name, shape in _outputs_in_order(case.config):
            size = int(np.prod(shape))
            found[name], numbers = numbers[:size].reshape(shape), numbers[size:]
        differences.append(difference(case, found))
    assert not len(numbers)
    return float(np.max(differences))  # not a number where one is


def _as_bytes(case: Case) -> bytes:
    """A head and its inputs as the driver reads them."""
    weights, config = pack(case.config, case.tensors), case.config
    names = ["feature", "history_length", "history", *config.caches, "traits"]
    return b"".join(array.tobytes() for array in (*weights, *(case.inputs[n] for n in names if n in case.inputs)))


def _outputs_in_order(config: NativeConfig) -> list[tuple[str, tuple[int, ...]]]:
    _, shapes = config.shapes()
    rows = [name.replace("keys", "key").replace("values", "value") for name in config.caches]
    names = ["plain_logits", "calibrated_logits", "logits", "attention", "trust", *rows, "trait"]
    return [(name, shapes[name]) for name in names if name in shapes]


def rounded(case: Case) -> dict[str, np.ndarray]:
    """The tensors as the file of the case's precision has them, in float64."""
    found = {name: value.astype(np.float64) for name, value in case.tensors.items()}
    for name, value in found.items():
        kind = name.split(".")[-2] if name.endswith(".weight") else ""
        if not case.config.precision or kind in ("", "attention_norm", "feed_forward_norm") or name.startswith("gate"):
            continue
        steps = 127 if kind in ("plain", "own") and case.config.precision == 2 else 32767
        axes: tuple[int, ...] = (1,)
        if value.ndim == 3:  # one scale for the outputs at one place, if the partitions stand side by side
            axes = (0, 2) if case.config.partitions >= 16 else (2,)
        scale = np.maximum(np.abs(value).max(axes, keepdims=True) / steps, np.finfo(np.float32).tiny)
        scale = scale.astype(np.float32).astype(np.float64)
        found[name] = np.rint((value / scale).astype(np.float32)) * scale
    return found


def answer(case: Case) -> dict[str, np.ndarray]:
    """The head's outputs, by name."""
    c, weights = case.config, rounded(case)
    inputs = {name: value.astype(np.float64) for name, value in case.inputs.items()}
    length = max(0, int(case.inputs["history_length"][0]))
    run = _streaming if c.form else _window
    calibrated, attention, out = run(c, weights, inputs, length)
    feature = inputs["feature"][0]
    plain = weights["plain.weight"] @ feature[: c.width] + weights["plain.bias"]
    own = "own" if c.classifier else "plain"
    personal = weights[f"{own}.weight"] @ np.maximum(calibrated, 0) + weights[f"{own}.bias"]
    personal = personal + plain if c.classifier == 2 else personal
    several = bool(c.flags & SEVERAL)
    log_p, log_q = (plain, personal) if several else (_log_softmax(plain), _log_softmax(personal))
    trust = float(length >= c.warm_up)
    if c.traits:
        trait = weights["trait.weight"] @ feature + weights["trait.bias"]
        past, count = inputs["traits"].reshape(c.rows, c.traits), min(length, c.rows)
        past = past[:count] if c.form else past[c.rows - count :]
        trust = _trust(c, weights, log_p, log_q, attention, trait, past, length)
        out["trait"] = trait[None]
    out |= {"plain_logits": plain[None], "calibrated_logits": personal[None], "attention": attention[None]}
    return out | {"logits": (log_p + trust * (log_q - log_p))[None], "trust": np.array([trust])}


def _project(c, weights, name, x, k):
    """Rows (T, D) -> (T, k, D)."""
    size = c.width // c.partitions
    parts = x.reshape(len(x), c.partitions, size)
    found = np.einsum("poj,tpj->tpo", weights[f"{name}.weight"], parts).reshape(len(x), c.partitions, k, size)
    found = found.transpose(0, 2, 3, 1) if c.flags & SHUFFLE else found.transpose(0, 2, 1, 3)
    return found.reshape(len(x), k, c.width) + weights[f"{name}.bias"].reshape(k, c.width)


def _norm(weights, name, x):
    off = x - x.mean(-1, keepdims=True)
    scaled = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _after(c, weights, n, x, mixed):
    x = _norm(weights, f"{n}.attention_norm", x + _project(c, weights, f"{n}.out", mixed, 1)[:, 0])
    hidden = np.maximum(_project(c, weights, f"{n}.expand", x, 1)[:, 0], 0)
    return _norm(weights, f"{n}.feed_forward_norm", x + _project(c, weights, f"{n}.contract", hidden, 1)[:, 0])


def _softmax(x):
    found = np.exp(x - x.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def _log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def _window(c, weights, inputs, length):
    x = np.concatenate([inputs["history"][0], inputs["feature"]])[:, : c.width]
    photos, size = c.rows + 1, c.width // c.heads
    row = np.arange(photos)
    allowed = np.broadcast_to(row >= c.rows - min(length, c.rows), (photos, photos))
    apart = row[:, None] - row[None]
    allowed = allowed & (apart >= 0) & (apart < c.window) if c.flags & CAUSAL else allowed
    allowed, seen = allowed | (apart == 0), np.zeros(photos)
    for n in range(c.layers):
        q, k, v = _project(c, weights, f"{n}.qkv", x, 3).reshape(photos, 3, c.heads, size).transpose(1, 2, 0, 3)
        scores = np.where(allowed, q @ k.transpose(0, 2, 1) / np.sqrt(size), -1e9)
        share = _softmax(scores)
        x = _after(c, weights, n, x, (share @ v).transpose(1, 0, 2).reshape(photos, -1))
        seen += share[:, -1].mean(0) / c.layers
    return x[-1], seen, {}


def _streaming(c, weights, inputs, length):
    x, slots, size = inputs["feature"][:, : c.width], c.window - 1, c.width // c.heads
    count, seen, out = min(length, slots), np.zeros(c.window), {}
    for n in range(c.layers):
        q, k, v = _project(c, weights, f"{n}.qkv", x, 3).reshape(3, c.heads, 1, size)
        keys, values = (
            np.concatenate([inputs[f"{kind}_{n}"][:, :count], own], 1) for kind, own in (("keys", k), ("values", v))
        )
        share = _softmax(q @ keys.transpose(0, 2, 1) / np.sqrt(size))
        x = _after(c, weights, n, x, (share @ values).reshape(1, -1))
        seen[:count] += share[:, 0, :-1].mean(0) / c.layers
        seen[-1] += share[:, 0, -1].mean() / c.layers
        out[f"key_{n}"], out[f"value_{n}"] = k, v
    return x[0], seen, out


def _of_answers(log_p, log_q):
    p, q = np.exp(log_p), np.exp(log_q)
    agree = float(p.argmax() == q.argmax())
    return [
        (p * log_p).sum(),
        (q * log_q).sum(),
        p.max(),
        q.max(),
        min(10.0, (p * (log_p - log_q)).sum()),
        min(10.0, (q * (log_q - log_p)).sum()),
        p[q.argmax()],
        q[p.argmax()],
        agree,
        agree,
        np.exp(0.5 * (log_p + log_q)).sum(),
    ]


def _trust(c, weights, log_p, log_q, attention, trait, past, length):
    b, count = weights["gate.between"], len(past)
    total, some = past.sum(0), max(1, count)
    mean, known = total / some, 1 + count * b
    spread = b / known
    middle = spread * total
    same = 0.5 * (trait**2 / (1 + b) + np.log1p(b) - (trait - middle) ** 2 / (1 + spread) - np.log1p(spread))
    apart = ((past - mean) ** 2 - past**2 / (1 + b) - np.log1p(b)).sum(0)
    one = -0.5 * (apart + count * mean**2 / known + np.log(known)).sum() / some
    if c.flags & SEVERAL:  # each label an answer of two classes, the mean over labels
        both = (np.stack([odds, np.zeros_like(odds)], axis=1) for odds in (log_p, log_q))
        labels = zip(*(np.stack([_log_softmax(pair) for pair in pairs]) for pairs in both), strict=True)
        answers = np.mean([_of_answers(one, other) for one, other in labels], axis=0)
    else:
        answers = _of_answers(log_p, log_q)
    statistics = [
        np.log1p(count),
        1 / (1 + count),
        *answers,
        attention[-1],
        (attention * np.log(np.maximum(attention, 1e-6))).sum(),
        np.clip(same.sum(), -20, 20),
        np.clip(one, -20, 20),
    ]
    hidden = np.maximum(weights["gate.expand.weight"] @ np.array(statistics) + weights["gate.expand.bias"], 0)
    decided = (weights["gate.decide.weight"] @ hidden + weights["gate.decide.bias"])[0]
    return float(1 / (1 + np.exp(-decided))) * (length > 0)
