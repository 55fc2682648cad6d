"""Evaluate heads through exported bundles on streams of unseen people.

The device's own code replays the streams. Every method answers the same target photos; only the history before them
changes: the person's own photos, those of a foreigner, or photos of all people. The last two are controls: they should
not help, and must not hurt. The accuracy against shuffled labels is the chance level.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean, bootstrap_ratio, interleave
from refocus.cloud_train.data.table import PhotoTable, foreigners_of
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.page import data_of
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.delivery import logits_in_every_way, plain_logits, right_answers
from refocus.cloud_train.methods.iciia.programs import iciia_head
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.iciia import Run, delivered_variant, usable_lengths
from refocus.edge.bundle import MANIFEST, Bundle, load_bundle
from refocus.edge.errors import BundleError
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Answer, Recognizer, softmax
from refocus.export import ExportSettings, export
from refocus.export.bundle import Export, export_bundle
from refocus.export.parity import read_streams
from refocus.export.program import Checkpoint, load_checkpoint

RESULTS_SCHEMA = 3  # 2: Refocus 0.1; the same fields
NOTHING = 1e-6  # of accuracy, which rounding may leave where people gain and lose alike


@dataclass(frozen=True)
class Target:
    """Photo to answer, with the features before it.

    The features (K, D) are of the photo's own person, of a foreigner, and of all people.
    """

    client: str
    label: int
    photo: str
    feature: np.ndarray
    own: np.ndarray
    own_photos: tuple[str, ...]
    foreign: np.ndarray
    mixed: np.ndarray

    def histories(self) -> dict[str, np.ndarray]:
        """Return the histories by the prefix of their name in the results."""
        return {"": self.own, "foreign_": self.foreign, "mixed_": self.mixed}

    @property
    def content(self) -> bytes:
        """All that decides the answers to it."""
        features = (self.feature, self.own, self.foreign, self.mixed)
        return self.photo.encode() + b"".join(rows.tobytes() for rows in features)


def bundle_of(run: Run, head: Path, window: int = 0) -> Bundle:
    """Export the head's bundle unless it exists for exactly this checkpoint.

    Args:
        run: the run, whose photos the export compares.
        head: path of the head's checkpoint.
        window: photos that attention spans; 0: as in training.
    """
    checkpoint = load_checkpoint(head, window=window)
    out = head.parent / "bundles" / (f"{head.stem}-window-{window}" if window else head.stem)
    found = _exported(checkpoint, out)
    if found is not None:
        return found
    return export_bundle([checkpoint], out, Export(["onnx:fp32"]), read_streams(run.parity_photos()), head.stem)


def delivered_bundle_of(run: Run, head: Path) -> Bundle:
    """Export the bundle that ``refocus export`` delivers for a checkpoint.

    It contains the head, class shares or both, as validation people chose. An existing bundle of the same checkpoint is
    used again.
    """
    checkpoint, out = load_checkpoint(head), head.parent / "bundles" / f"{head.stem}-delivered"
    if _choice(checkpoint) == "head":
        return bundle_of(run, head)
    found = _exported(checkpoint, out)
    if found is None:
        photos = run.parity_photos()
        export(ExportSettings(models=(str(head),), out=out, to=("onnx:fp32",), photos=photos, name=head.stem), say)
        found = load_bundle(out)
    return found


def _choice(checkpoint: Checkpoint) -> str:
    """Return the method that validation people chose for answers.

    It is "head" for heads that were trained before there was a choice.
    """
    return str((checkpoint.card.training.get("delivery") or {}).get("choice", "head"))


def _exported(checkpoint: Checkpoint, out: Path) -> Bundle | None:
    """Return the bundle in a folder if it was made from this checkpoint."""
    if (out / MANIFEST).exists():
        with contextlib.suppress(BundleError):  # another version of the manifest; a new export replaces it
            bundle = load_bundle(out)
            made_of = bundle.manifest.head().training
            wanted = {"checkpoint_sha256": checkpoint.card.sha256, "delivery": checkpoint.card.training.get("delivery")}
            if all(made_of.get(name) == value for name, value in wanted.items()):
                return bundle
    return None


def replay(bundle: Bundle, table: PhotoTable) -> dict[str, list[Answer]]:
    """Recognise every client's stream, each with an empty profile.

    The photos go through :meth:`refocus.edge.Recognizer.recognize`.
    """
    people, answers = list(table.clients()), {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, rows) in enumerate(track(people, "replaying streams", len(people))):
            with Recognizer(bundle, Path(folder) / f"{number}.sqlite3", threads=1) as device:
                answers[name] = [device.recognize(table.read(photo), photo) for photo in table.photo[rows].tolist()]
    return answers


def choose_targets(table: PhotoTable, features: dict[str, np.ndarray], longest: int, per_client: int) -> list[Target]:
    """Choose target photos of each client, with three histories each.

    A client has at most ``per_client`` targets, each after ``longest`` photos. The foreigner is a client of another
    domain (another script, another parent category; any other client where domains are not known), so for glyphs
    another script in another hand. Each target of a client gets another foreigner: with few foreigners for all targets
    the control would depend on these few. The mixed photos are drawn from all clients, as in streams that are mixed
    (:func:`partitions.mixed`), but never the target itself.

    Raises:
        DataError: no client has more than ``longest`` photos.
    """
    people = [(name, rows) for name, rows in table.clients() if len(rows) > longest]
    if len(people) < 2:
        raise DataError(f"{len(people)} test clients have more than {longest} photos; at least two are needed")
    homes = [table.home(rows) for _, rows in people]
    targets, everybody, rng = [], np.concatenate(list(features.values())), np.random.default_rng(0)
    first = dict(zip(features, np.cumsum([0, *map(len, features.values())]).tolist(), strict=False))
    for index, (name, rows) in enumerate(people):
        positions = sorted({int(p) for p in np.linspace(longest, len(rows) - 1, per_client)})
        for position, number in zip(positions, itertools.cycle(foreigners_of(homes, index)), strict=False):
            foreigner, _ = people[number]
            before = slice(position - longest, position)
            drawn = rng.integers(len(everybody) - 1, size=longest)
            drawn += drawn >= first[name] + position
            targets.append(
                Target(
                    client=name,
                    label=int(table.label[rows[position]]),
                    photo=str(table.photo[rows[position]]),
                    feature=features[name][position],
                    own=features[name][before],
                    own_photos=tuple(table.photo[rows[before]].tolist()),
                    foreign=features[foreigner][:longest],
                    mixed=everybody[drawn],
                )
            )
    return targets


Predictions = dict[str, dict[int, np.ndarray]]  # name -> history length -> (targets,) class indices


def answer_targets(
    recognizer: Recognizer,
    variant: str,
    targets: Sequence[Target],
    lengths: Sequence[int],
    delivered: Recognizer | None = None,
) -> Predictions:
    """Answer every target with every history length and kind of history.

    Args:
        recognizer: recogniser with the head.
        variant: name of the head in the results.
        targets: photos to answer.
        lengths: history lengths.
        delivered: recogniser with the delivered bundle of this head. If given, its answers and those of the plain
            classifier are added, and all of them with foreign and mixed histories. None for a head that is only
            compared with the delivered one.
    """
    chosen: dict[str, dict[int, list[int]]] = {}
    for target in track(targets, f"answering with {variant}", len(targets)):
        histories = {prefix: rows for prefix, rows in target.histories().items() if delivered or not prefix}
        for length in lengths:
            for prefix, history in histories.items():
                before = history[len(history) - length :]
                answer = recognizer.answer(target.feature, before)
                logits = {variant: answer.calibrated_logits}
                if delivered is None:
                    logits[f"{variant}_gated"] = answer.logits
                else:
                    other = answer if delivered is recognizer else delivered.answer(target.feature, before)
                    logits |= {"original": answer.plain_logits, "delivered": other.logits}
                for name, row in logits.items():
                    chosen.setdefault(prefix + name, {}).setdefault(length, []).append(int(row.argmax()))
    for prefix in ("foreign_", "mixed_"):
        chosen.pop(f"{prefix}original", None)  # the plain classifier reads no history
    return {name: {k: np.array(best) for k, best in rows.items()} for name, rows in chosen.items()}


def answer_streams(recognizer: Recognizer, table: PhotoTable, features: dict[str, np.ndarray]) -> np.ndarray:
    """Answer all photos of all clients' streams, from an empty history.

    Args:
        recognizer: recogniser with the head.
        table: photos in streams, R rows.
        features: feature of the encoder for each photo, by the photo's name.

    Returns:
        (2, R) class indices of the plain and the delivered answers.
    """
    best, people = np.zeros((2, len(table)), dtype=np.int64), list(table.clients())
    for _, rows in track(people, "answering mixed streams", len(people)):
        answers = recognizer.replay(features[name] for name in table.photo[rows].tolist())
        for row, answer in zip(rows, answers, strict=True):
            best[:, row] = answer.plain_logits.argmax(), answer.logits.argmax()
    return best


@dataclass(frozen=True)
class Trials:
    """Photos and histories on which every head of a run is evaluated.

    Attributes:
        targets: photos with their alternative histories.
        truth: (n,) class of each target.
        lengths: history lengths.
        mixed: test photos dealt to clients at random: streams whose photos have nothing in common.
        features: feature of the encoder for each test photo, by the photo's name.
    """

    targets: list[Target]
    truth: np.ndarray
    lengths: tuple[int, ...]
    mixed: PhotoTable
    features: dict[str, np.ndarray]


def evaluate_run(run: Run, targets_per_client: int = 33, command: str = "") -> dict[str, Any]:
    """Evaluate all trained heads of a run on its test clients.

    The heads are evaluated through exported bundles. Answers are cached next to each head, so an interrupted evaluation
    resumes.

    Args:
        run: run with trained heads.
        targets_per_client: maximum number of target photos of each test client.
        command: command line, stored in the document.

    Returns:
        The results document (``docs/results-format.md``).

    Raises:
        DataError: no head was trained, or the test clients have too few photos.
    """
    heads, started = run.heads(), time.monotonic()
    delivered = delivered_variant(heads, str(run.folder))
    first = next(head for head in heads if head.stem == delivered)
    choices = [_choice(load_checkpoint(head)) for head in heads if head.stem == delivered]
    shipped, test = delivered_bundle_of(run, first), run.table.of_split("test")
    stream = replay(shipped, test)
    trials = _trials(run, stream, _lengths(run, heads), targets_per_client)
    seeds, mixed_streams, bundles = _evaluate_heads(run, heads, trials, delivered)
    truth, targets = trials.truth, trials.targets
    accuracy, control = _accuracies(seeds, truth)
    timings = latency(bundle_of(run, first), test)
    clients = [target.client for target in targets]
    counts = {"test_clients": len(stream), "targets": len(targets), **run.kind_of_people()}
    return {
        "schema_version": RESULTS_SCHEMA,
        "data": data_of(run.config.data.source, run.table, **counts),
        "backbone": run.backbone_name,
        "seeds": sorted(seeds),
        "delivered_variant": delivered,
        "delivered_choices": choices,
        "accuracy": accuracy,
        "control": control,
        "gain": _gains(seeds, truth, clients),
        "never_worse": never_worse(seeds, truth, clients, delivered)
        | {"mixed_streams": _mixed_streams(mixed_streams, trials.mixed)},
        "people": _people(seeds, truth, clients),
        "stream": _stream(test, stream),
        "ways": _ways(run, [head for head in heads if head.stem == delivered], targets_per_client),
        "labelled": None,  # see studies/iciia/labelled.py
        "latency_ms": timings["latency_ms"],
        "overhead": timings["overhead"],
        "bundles": bundles,
        "example": find_example(Recognizer(shipped, threads=1), targets) if choices[0] in ("head", "both") else None,
        "commands": [*run.commands(), *([command] if command else [])],
        "seconds": round(time.monotonic() - started),
    }


def _trials(run: Run, stream: dict[str, list[Answer]], lengths: tuple[int, ...], targets_per_client: int) -> Trials:
    """Build the trials from the features of the replayed streams."""
    test = run.table.of_split("test")
    features = {name: np.stack([answer.feature for answer in answers]) for name, answers in stream.items()}
    targets = choose_targets(test, features, max(lengths), targets_per_client)
    by_photo = {
        name: row
        for client, rows in test.clients()
        for name, row in zip(test.photo[rows].tolist(), features[client], strict=True)
    }
    truth = np.array([target.label for target in targets])
    return Trials(targets, truth, lengths, test.mixed(0.0, seed=run.config.data.seed), by_photo)


def _evaluate_heads(
    run: Run, heads: Sequence[Path], trials: Trials, delivered: str
) -> tuple[dict[int, Predictions], dict[int, np.ndarray], list[dict[str, Any]]]:
    """Evaluate all heads and describe their bundles.

    Returns:
        Answers to the targets by seed, answers to the mixed streams by seed, and a description of each bundle.
    """
    seeds: dict[int, Predictions] = {}
    mixed_streams: dict[int, np.ndarray] = {}
    bundles = []
    for head in heads:
        seed, checkpoint, bundle = int(head.parent.name[5:]), load_checkpoint(head), bundle_of(run, head)
        shipped = delivered_bundle_of(run, head) if head.stem == delivered else None
        predictions, streams = _evaluate_head(checkpoint, bundle, trials, shipped)
        seeds.setdefault(seed, {}).update(predictions)
        if streams is not None:
            mixed_streams[seed] = streams
        card = checkpoint.card
        about = {**_parity(bundle), **card.config, "training_seconds": card.training.get("seconds")}
        bundles.append({"seed": seed, "variant": head.stem, **about})
    return seeds, mixed_streams, bundles


def _evaluate_head(
    checkpoint: Checkpoint, bundle: Bundle, trials: Trials, delivered: Bundle | None
) -> tuple[Predictions, np.ndarray | None]:
    """Evaluate a head on the targets; answers are cached on disk.

    The bundle that is delivered for the head answers the mixed streams. The cache key includes the delivery: training
    the head again with another gate may give the same weights and another delivery.
    """
    head, delivery = checkpoint.path, json.dumps(checkpoint.card.training.get("delivery"), sort_keys=True)
    digest = hashlib.sha256(f"{checkpoint.identity} {delivery}".encode())
    digest.update(f"{trials.lengths} {delivered and delivered.folder.name} {trials.mixed.fingerprint()}".encode())
    for target in trials.targets:
        digest.update(target.content)
    path = head.parent / "judged" / f"{head.stem}-{digest.hexdigest()[:16]}.npz"

    def answer() -> dict[str, np.ndarray]:
        recognizer = Recognizer(bundle, threads=1)  # a head is far too small to share among threads
        shipped = None
        if delivered is not None:
            shipped = recognizer if delivered.folder == bundle.folder else Recognizer(delivered, threads=1)
        best = answer_targets(recognizer, head.stem, trials.targets, trials.lengths, shipped)
        streams = {"streams": answer_streams(shipped, trials.mixed, trials.features)} if shipped else {}
        return {f"{name}/{k}": classes for name, rows in best.items() for k, classes in rows.items()} | streams

    arrays = once(path, answer)
    streams, predictions = arrays.pop("streams", None), Predictions()
    for key, classes in arrays.items():
        name, _, length = key.partition("/")
        predictions.setdefault(name, {})[int(length)] = classes
    return predictions, streams


@dataclass(frozen=True)
class PerPerson:
    """Answers to the targets, summed over each person's.

    Attributes:
        truth: (n,) classes of the targets.
        group: (n,) number of each target's person.
    """

    truth: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, truth: np.ndarray, clients: Sequence[str]) -> PerPerson:
        """Group targets by their client."""
        return cls(truth, np.unique(clients, return_inverse=True)[1])

    @property
    def sizes(self) -> np.ndarray:
        """Targets of each person."""
        return np.bincount(self.group)

    def gains(self, seeds: Iterable[Predictions], name: str, k: int) -> list[np.ndarray]:
        """Compare predictions with those of the plain classifier.

        Returns:
            For each seed (n,): 1 if only this answer is correct, -1 if only the plain one is, otherwise 0.
        """
        return [(best[name][k] == self.truth) * 1.0 - (best["original"][k] == self.truth) for best in seeds]

    def shares(self, values: np.ndarray) -> np.ndarray:
        """Average values (n,) over each person's targets."""
        means: np.ndarray = np.bincount(self.group, weights=values) / self.sizes
        return means

    def sums(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Average values (n,) over seeds and sum them over each person's targets."""
        return np.bincount(self.group, weights=np.mean(values, axis=0))

    def mean(self, sums: np.ndarray) -> dict[str, Any]:
        """Average sums per person, with the 95 % interval over people."""
        return bootstrap_mean(sums / self.sizes, self.sizes).as_dict()


def never_worse(
    seeds: dict[int, Predictions], truth: np.ndarray, clients: Sequence[str], variant: str
) -> dict[str, Any]:
    """Measure the loss on foreign histories and the gain on own ones.

    The gate must not lose accuracy on mixed and foreign histories, and must keep the gain on the person's own.

    Args:
        seeds: answers of the delivered bundle, by seed.
        truth: (n,) class of each target.
        clients: client of each target.
        variant: ungated head whose gain is the reference.
    """
    people, lengths = PerPerson.of(truth, clients), sorted(next(iter(seeds.values()))["original"])

    def sums(name: str, k: int) -> np.ndarray:
        return people.sums(people.gains(seeds.values(), name, k))

    pooled = {
        content: {
            **people.mean(np.mean([sums(f"{content}_delivered", k) for k in lengths], axis=0)),
            "answers": len(truth) * len(lengths) * len(seeds),
        }
        for content in ("mixed", "foreign")
    }
    kept = {
        str(k): bootstrap_ratio(sums("delivered", k), sums(variant, k)).as_dict()
        for k in lengths
        if people.mean(sums(variant, k))["low"] > NOTHING  # else it is a share of what may be none
    }
    return {**pooled, "kept": kept}


def _mixed_streams(answers: dict[int, np.ndarray], mixed: PhotoTable) -> dict[str, Any]:
    """Compare delivered and original answers on streams of mixed content.

    Every photo is answered once per seed, from an empty history.
    """
    right = np.mean([best == mixed.label for best in answers.values()], axis=0)
    people = PerPerson.of(mixed.label, mixed.client.tolist())
    return {
        **people.mean(people.sums([right[1] - right[0]])),
        "photos": len(mixed) * len(answers),
        "original": float(right[0].mean()),
        "delivered": float(right[1].mean()),
    }


def _lengths(run: Run, heads: Sequence[Path]) -> tuple[int, ...]:
    configs = [IciiaConfig(**load_checkpoint(head).card.config["iciia"]) for head in heads]
    shortest = min(configs, key=lambda config: config.receptive_field)
    return usable_lengths(run.table.of_split("test"), shortest)


def _accuracies(seeds: dict[int, Predictions], truth: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """Average accuracies over seeds, by name and history length.

    Methods and controls are returned separately. The control "chance" is the accuracy of the delivered answers against
    shuffled labels.
    """
    accuracy: dict[str, dict[str, float]] = {}
    control: dict[str, dict[str, float]] = {}
    for name in sorted({name for best in seeds.values() for name in best}):
        rows = [best[name] for best in seeds.values() if name in best]
        place = control if name.startswith(("foreign_", "mixed_")) else accuracy
        place[name] = {str(k): float(np.mean([(row[k] == truth).mean() for row in rows])) for k in rows[0]}
    shuffled = [np.random.default_rng(seed).permutation(truth) for seed in seeds]
    delivered = [best["delivered"] for best in seeds.values()]
    control["chance"] = {
        str(k): float(np.mean([(row[k] == wrong).mean() for row, wrong in zip(delivered, shuffled, strict=True)]))
        for k in delivered[0]
    }
    return accuracy, control


def _gains(seeds: dict[int, Predictions], truth: np.ndarray, clients: Sequence[str]) -> dict[str, Any]:
    """Compute paired differences to the plain classifier on the same targets.

    Each has its mean, the 95 % interval over people, and the difference of every seed.
    """
    people = PerPerson.of(truth, clients)
    gains: dict[str, Any] = {}
    for name in sorted({name for best in seeds.values() for name in best} - {"original"}):
        heads = [best for best in seeds.values() if name in best]
        for k in heads[0][name]:
            rows = people.gains(heads, name, k)
            interval = people.mean(people.sums(rows))
            gains.setdefault(name, {})[str(k)] = {**interval, "seeds": [float(row.mean()) for row in rows]}
    return gains


def _people(seeds: dict[int, Predictions], truth: np.ndarray, clients: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy per person with the longest history.

    The accuracies of the original and the delivered answers are means over seeds.
    """
    people, longest = PerPerson.of(truth, clients), max(next(iter(seeds.values()))["original"])
    shares = {
        name: people.sums([best[name][longest] == truth for best in seeds.values()]) / people.sizes
        for name in ("original", "delivered")
    }
    rows = zip(
        np.unique(clients).tolist(), people.sizes.tolist(), *(of.tolist() for of in shares.values()), strict=True
    )
    return {"history": longest, "rows": [dict(zip(("person", "targets", *shares), row, strict=True)) for row in rows]}


def _stream(test: PhotoTable, answers: dict[str, list[Answer]]) -> dict[str, float]:
    """Compute the accuracy over whole streams with a growing history.

    Every photo counts once, as a user of the device sees it.
    """
    labels = {name: test.label[rows] for name, rows in test.clients()}
    right, plain = [], []
    for name, row in answers.items():
        right += [answer.labels[0] == test.classes[label] for answer, label in zip(row, labels[name], strict=True)]
        plain += [int(answer.plain_logits.argmax()) == label for answer, label in zip(row, labels[name], strict=True)]
    return {"photos": len(right), "delivered": float(np.mean(right)), "original": float(np.mean(plain))}


def _ways(run: Run, heads: Sequence[Path], targets_per_client: int) -> dict[str, Any] | None:
    """Compare the classifier, class shares, the head, its control and both.

    All are evaluated on test people with the temperature and the exponent that validation people chose. Intervals are
    over people, each with the mean over seeds.

    Returns:
        The section of the document, or None for heads that were trained before deliveries existed.
    """
    loaded = [load_checkpoint(path) for path in heads]
    deliveries: list[Any] = [head.card.training.get("delivery") for head in loaded]
    if None in deliveries:
        return None
    people: dict[str, list[list[float]]] = {}
    bank, history, chosen = run.bank(run.backbone()).of_split("test"), max(d["history"] for d in deliveries), []
    for head, delivery in zip(loaded, deliveries, strict=True):
        chosen.append(delivery["choice"])
        whole = iciia_head(head)
        asked = history, delivery["temperature"], targets_per_client, delivery.get("gated", False)
        right = right_answers(logits_in_every_way(whole, bank, plain_logits(whole.plain, bank), *asked))
        keys = {"original": "plain", "both": str(delivery["with_head"])}
        for name in ("original", "shares", "head", "uniform", "both"):
            people.setdefault(name, []).append([person[keys.get(name, name)].mean() for person in right])
    means = {name: np.mean(of, axis=0) for name, of in people.items()}
    rows = [
        {"way": name, "accuracy": float(of.mean()), "gain": bootstrap_mean(of - means["original"]).as_dict()}
        for name, of in means.items()
    ]
    return {"history": history, "people": len(means["original"]), "chosen": chosen, "rows": rows}


def latency(bundle: Bundle, test: PhotoTable, rounds: int = 128) -> dict[str, Any]:
    """Measure encoder, head and the whole recogniser on one thread.

    The three are interleaved in one run, with a full history. ``whole`` is the time from a photo's bytes to a stored
    feature: decoding, encoder, history, head and append.
    """
    photos = [test.read(name) for name in test.photo[: min(256, len(test))].tolist()]
    turn = itertools.cycle(photos)
    with contextlib.ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "profile.sqlite3"
        device = stack.enter_context(Recognizer(bundle, profile, threads=1))
        for content in photos[: device.window]:
            device.recognize(content)
        pixels = preprocess(photos[0], bundle.manifest.preprocessing)
        feature = device.encode(photos[0])
        timings = interleave(
            {
                "encoder": lambda: device.encoder.run(photo=pixels),
                "head": lambda: device.answer_next(feature),
                "whole": lambda: device.recognize(next(turn)),
            },
            rounds,
        )
    names = ("encoder", "head", "whole")
    return {
        "latency_ms": {n: {f"p{share}": timings.percentile(n, share) for share in (50, 90)} for n in names},
        "overhead": {"head_over_encoder": timings.ratio("head", "encoder").as_dict()},
    }


def _parity(bundle: Bundle) -> dict[str, Any]:
    head = next(artifact for artifact in bundle.manifest.artifacts if artifact.role == "head")
    assert head.parity is not None  # noqa: S101  # export_bundle writes none without it
    return {
        "gated_by": bundle.manifest.head().personalisation.gate,
        **{name: getattr(head.parity, name) for name in ("max_abs", "top1_agreement", "photos")},
        "head_bytes": head.size_bytes,
    }


def find_example(recognizer: Recognizer, targets: Sequence[Target], length: int = 3) -> dict[str, Any] | None:
    """Find the best example of an error that the history corrects (Fig. 4).

    Among targets that the plain classifier gets wrong and the head gets correct, it is the one whose correct label
    gains most probability; None if there is none.
    """
    labels, best, gained = recognizer.card.labels, None, 0.0
    for target in targets:
        own = target.own[len(target.own) - length :]
        answer = recognizer.answer(target.feature, own)
        before, after = softmax(answer.plain_logits), softmax(answer.logits)
        moved = float(after[target.label] - before[target.label])
        turned = answer.plain_logits.argmax() != target.label == answer.logits.argmax()
        if turned and moved > gained:
            gained = moved
            best = {
                "client": target.client,
                "photo": target.photo,
                "label": labels[target.label],
                "history": list(target.own_photos[len(target.own_photos) - length :]),
                "attention": [round(float(weight), 4) for weight in answer.attention],
                "trust": round(answer.trust, 4),
                "before": _ranked(labels, before),
                "after": _ranked(labels, after),
            }
    return best


def _ranked(labels: Sequence[str], probabilities: np.ndarray, top: int = 3) -> list[list[Any]]:
    return [[labels[i], round(float(probabilities[i]), 4)] for i in np.argsort(-probabilities)[:top]]
