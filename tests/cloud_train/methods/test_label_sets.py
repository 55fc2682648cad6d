"""Heads for photos with several labels: the device's forms are their definition, and what they are trained by."""

from __future__ import annotations

import copy

import numpy as np
import onnxruntime
import pytest
import torch

from refocus.cloud_train.data.label_loss import label_loss, right
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.delivery import THRESHOLDS, fit_thresholds
from refocus.cloud_train.methods.iciia.gate import STATISTICS, StatisticsGate, mix
from refocus.cloud_train.methods.iciia.lean_gate import LeanGate
from refocus.cloud_train.methods.iciia.native import native_head
from refocus.cloud_train.methods.iciia.programs import WindowHead
from refocus.cloud_train.methods.iciia.streaming import SLOTS, StreamingHead, cache_shapes
from refocus.cloud_train.methods.iciia.windowed import DeviceWindowHead
from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes import SEVERAL
from tests.edge.runtimes.native_reference import Case, source_of

SIGNATURE, LABELS, TRAITS, PHOTOS = 12, 5, 4, 7


def head_of(**config):
    torch.manual_seed(0)
    config = IciiaConfig(width=48, layers=1, partitions=12, heads=4, window=8, **config)
    gate = StatisticsGate(config.width + SIGNATURE, TRAITS, several=True)
    gate.directions.normal_(0, 0.1)
    gate.between.uniform_(0.1, 4)
    gate.mean.normal_()
    gate.std.uniform_(0.5, 2)
    plain = torch.nn.Linear(config.width, LABELS)
    head = WindowHead(plain, IciiaClassifier(config, LABELS, plain), gate, several=True)
    for parameter in head.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return head.double().eval(), config


@torch.no_grad()
def test_the_form_over_a_window_equals_its_definition():
    head, config = head_of()
    device = DeviceWindowHead(head.plain, head.personal, head.gate, several=True).double()
    rows, slots = torch.randn(1, PHOTOS + 1, config.width + SIGNATURE, dtype=torch.float64), config.window - 1
    for length in (0, 3, 7):
        length_of, history = torch.tensor([length]), rows[:, :PHOTOS].clone()
        history[:, : slots - length] = 0
        wanted = head(rows[:, -1], history, length_of)
        found = device(rows[:, -1], history, length_of, head.gate.traits(history))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        trust = found[4]
        torch.testing.assert_close(found[2], found[0] + trust * (found[1] - found[0]))
        assert float(trust) == 0 if length == 0 else 0 < float(trust) < 1


@torch.no_grad()
def test_the_streaming_form_equals_its_definition():
    head, config = head_of(attention="causal")
    device = StreamingHead(head.plain, head.personal, head.gate, config.window - 1, several=True).double()
    caches = [torch.zeros(shape, dtype=torch.float64) for shape in cache_shapes(config).values()]
    traits = torch.zeros(config.window - 1, TRAITS, dtype=torch.float64)
    rows = torch.randn(PHOTOS, config.width + SIGNATURE, dtype=torch.float64)
    for photo in range(PHOTOS):
        history = torch.zeros(1, config.window - 1, rows.shape[1], dtype=torch.float64)
        history[0, config.window - 1 - photo :] = rows[:photo]
        wanted = head(rows[photo : photo + 1], history, torch.tensor([photo]))
        found = device(rows[photo : photo + 1], torch.tensor([photo]), *caches, traits)
        for a, b in zip(found[:3], wanted[:3], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        for cache, row in zip(caches, found[5:-1], strict=True):
            slot = cache.select(SLOTS, photo)
            slot.copy_(row.reshape(slot.shape))
        traits[photo] = found[-1][0]


@torch.no_grad()
def test_the_native_form_equals_its_definition():
    """A library that took the labels for classes of which a photo has one would mix other numbers, and trust otherwise."""
    native = pytest.importorskip("refocus.edge.runtimes.native", exc_type=RuntimeUnavailable)
    head, config = head_of()
    head.float()
    packed = native_head(head.plain, head.personal, head.gate, "window", several=True)
    case = Case(packed.config, {name: value.numpy() for name, value in packed.tensors.items()}, {})
    rows, slots = torch.randn(1, PHOTOS + 1, config.width + SIGNATURE), config.window - 1
    answers = []
    for several in (True, False):
        of_kind = case.config._replace(flags=case.config.flags | SEVERAL if several else case.config.flags & ~SEVERAL)
        program = native.Loaded(source_of(Case(of_kind, case.tensors, {})))
        for length in (0, 3, 7):
            history = rows[:, :PHOTOS].clone()
            history[:, : slots - length] = 0
            wanted = head(rows[:, -1], history, torch.tensor([length]))
            found = program.run(
                feature=rows[:, -1].numpy(),
                history_length=np.array([length]),
                history=history.numpy(),
                traits=head.gate.traits(history).numpy(),
            )
            names = ("plain_logits", "calibrated_logits", "logits", "attention", "trust")
            same = [
                np.allclose(found[name], value.numpy(), atol=2e-5) for name, value in zip(names, wanted, strict=False)
            ]
            answers.append((several, length, same[2], same[4]))
    assert [(logits, trust) for several, _, logits, trust in answers if several] == [(True, True)] * 3
    assert not any(logits for several, _, logits, _ in answers if not several)


def test_what_the_gate_sees_of_one_label_is_that_of_two_classes():
    torch.manual_seed(1)
    plain, personal = torch.randn(6, 1) * 3, torch.randn(6, 1) * 3
    traits, past, valid = torch.randn(6, TRAITS), torch.randn(6, 3, TRAITS), torch.ones(6, 3, dtype=torch.bool)
    attention = torch.full((6, 4), 0.25)
    seen = []
    for several, logits in ((True, (plain, personal)), (False, [torch.cat([x, x * 0], 1) for x in (plain, personal)])):
        gate = StatisticsGate(48, TRAITS, several=several)
        seen.append(gate.statistics(*logits, attention, traits, past, valid))
    torch.testing.assert_close(*seen)
    assert seen[0].shape == (6, len(STATISTICS))


def test_gates_of_the_two_kinds_are_not_taken_for_each_other():
    gate = StatisticsGate(48, TRAITS, several=True)
    one_of_several = copy.deepcopy(gate)
    one_of_several.several = False
    logits = torch.randn(2, LABELS)
    parts = [torch.cat([part.flatten() for part in parts]) for parts in (
        LeanGate(gate)._of_labels(logits), LeanGate(one_of_several)._of_answers(logits.log_softmax(1)))]  # fmt: skip
    assert not torch.allclose(*parts)


def test_certain_labels_are_statistics_without_infinite_numbers_on_onnx_runtime(tmp_path):
    gate, logits = StatisticsGate(8, several=True), torch.tensor([[-40.0, -17.0, 0.5, 16.3], [90.0, 3.0, -88.0, -16.4]])

    class Statistics(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = LeanGate(gate)

        def forward(self, logits):
            return torch.cat([part.flatten() for part in self.gate._of_labels(logits)])

    with torch.no_grad():
        wanted = Statistics()(logits)
        path = tmp_path / "statistics.onnx"
        torch.onnx.export(Statistics().eval(), (logits,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    [found] = session.run(None, {session.get_inputs()[0].name: logits.numpy()})
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


def test_losses_and_right_answers_are_those_of_torch():
    torch.manual_seed(0)
    logits, flags, classes = torch.randn(9, 4), torch.randint(0, 2, (9, 4)), torch.randint(0, 4, (9,))
    functional = torch.nn.functional
    wanted = functional.binary_cross_entropy_with_logits(logits, flags.float())
    torch.testing.assert_close(label_loss(logits, flags), wanted)
    torch.testing.assert_close(label_loss(logits, flags, "none").mean(), wanted)
    torch.testing.assert_close(label_loss(logits, flags, "sum"), wanted * 9)
    assert torch.equal(label_loss(logits, classes), functional.cross_entropy(logits, classes))
    assert right(logits, classes).tolist() == (logits.argmax(1) == classes).tolist()
    torch.testing.assert_close(right(logits, flags), ((logits > 0) == flags.bool()).double().mean(1))


def test_a_mixture_of_sets_is_of_the_log_odds_of_each_label():
    plain, personal = torch.tensor([[0.0, 4.0]]), torch.tensor([[2.0, -4.0]])
    mixed = mix(plain, personal, torch.tensor([0.25]), several=True)
    torch.testing.assert_close(mixed, torch.tensor([[0.5, 2.0]]))


def test_thresholds_are_found_where_they_help_and_not_of_noise():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=(2000, 3))
    label = np.stack([p[:, 0] > 0.7, rng.uniform(size=2000) < p[:, 1], rng.uniform(size=2000) < 0.005], axis=1)
    found = fit_thresholds(p, label.astype(np.uint8))
    assert found[0] == pytest.approx(0.7, abs=0.03)
    assert found[1:] == (0.5, 0.5)  # calibrated already; too rare
    assert 0.5 in THRESHOLDS
    assert fit_thresholds(p[:20], label[:20].astype(np.uint8)) == (0.5, 0.5, 0.5)
