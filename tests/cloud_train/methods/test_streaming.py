"""A streaming head against the pass over the whole stream that defines it, photo by photo."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import Iciia, IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.programs import WindowHead
from refocus.cloud_train.methods.iciia.streaming import SLOTS, StreamingHead, StreamingIciia, cache_shapes
from refocus.cloud_train.methods.iciia.windowed import DeviceWindowHead

SIGNATURE, CLASSES, TRAITS = 12, 7, 5
CONFIG = IciiaConfig(width=48, layers=3, partitions=12, heads=4, window=4, attention="causal")
FORMS = {
    "main": (CONFIG, "elementwise"),
    "grouped": (CONFIG, "grouped"),
    "shared classifier": (replace(CONFIG, classifier="shared"), "elementwise"),
    "residual classifier": (replace(CONFIG, classifier="residual"), "elementwise"),
    "not shuffled": (replace(CONFIG, shuffle=False), "elementwise"),
    "not shuffled, grouped": (replace(CONFIG, shuffle=False), "grouped"),
    "not partitioned": (replace(CONFIG, partitions=1), "elementwise"),
    "large partitions": (replace(CONFIG, partitions=4), "elementwise"),
    "one layer of full attention": (replace(CONFIG, layers=1, attention="full"), "elementwise"),
    "one layer, one head": (replace(CONFIG, layers=1, heads=1), "elementwise"),
}


def heads(config, layout, gate=None, dtype=torch.float64, form="streaming"):
    """The definition and the device's form of one head with weights that matter everywhere."""
    torch.manual_seed(0)
    gate = gate or StatisticsGate(config.width + SIGNATURE, TRAITS)
    if isinstance(gate, StatisticsGate):
        gate.centre.normal_()
        gate.directions.normal_(0, 0.1)
        gate.between.uniform_(0.1, 4)
        gate.mean.normal_()
        gate.std.uniform_(0.5, 2)
    plain = torch.nn.Linear(config.width, CLASSES)
    head = WindowHead(plain, IciiaClassifier(config, CLASSES, plain), gate)
    for parameter in head.parameters():  # biases, norms and residual classifiers start as constants
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    head = head.to(dtype).eval()
    if form == "window":
        return head, DeviceWindowHead(head.plain, head.personal, head.gate, layout).to(dtype)
    return head, StreamingHead(head.plain, head.personal, head.gate, config.receptive_field - 1, layout).to(dtype)


class Rings:
    """What a device keeps; what it has not filled yet holds rubbish."""

    def __init__(self, config, gate, dtype):
        self.states = {name: (torch.full(shape, 7.0, dtype=dtype), SLOTS)
                       for name, shape in cache_shapes(config).items()}  # fmt: skip
        if not isinstance(gate, WarmUpGate):
            self.states["traits"] = torch.full((config.receptive_field - 1, TRAITS), 7.0, dtype=dtype), 0
        self.seen = 0

    def values(self):
        return [value for value, _ in self.states.values()]

    def take_in(self, rows):
        for (value, axis), row in zip(self.states.values(), rows, strict=True):
            slot = value.select(axis, self.seen % value.shape[axis])
            slot.copy_(row.reshape(slot.shape))
        self.seen += 1


@torch.no_grad()
def streamed_and_defined(config, layout, gate=None, photos=25, dtype=torch.float64):
    """Both forms' outputs for every photo of one stream."""
    definition, streaming = heads(config, layout, gate, dtype)
    rows = torch.randn(photos, config.width + SIGNATURE, dtype=dtype)
    rings, slots = Rings(config, definition.gate, dtype), config.receptive_field - 1
    for photo in range(photos):
        known = min(photo, slots)
        history = torch.zeros(1, slots, rows.shape[1], dtype=dtype)
        history[0, slots - known :] = rows[photo - known : photo]
        wanted = definition(rows[photo : photo + 1], history, torch.tensor([known]))
        found = streaming(rows[photo : photo + 1], torch.tensor([photo]), *rings.values())
        rings.take_in(found[5:])
        yield photo, found, wanted


@pytest.mark.parametrize("form", FORMS)
def test_streaming_equals_the_pass_over_the_whole_stream(form):
    config, layout = FORMS[form]
    trusts = []
    for photo, found, wanted in streamed_and_defined(config, layout):
        for a, b in zip(found[:3], wanted[:3], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        torch.testing.assert_close(found[4], wanted[4], rtol=0, atol=1e-12)
        torch.testing.assert_close(found[-1], wanted[-1], rtol=0, atol=1e-12)
        seen = min(photo, config.window - 1)
        attention = wanted[3][0, wanted[3].shape[1] - seen - 1 :]
        torch.testing.assert_close(found[3][0].sort().values[-seen - 1 :], attention.sort().values)
        trusts.append(float(found[4]))
    assert trusts[0] == 0
    assert max(trusts) - min(trusts) > 0.1


def test_a_warm_up_gate_streams_too():
    for photo, found, wanted in streamed_and_defined(CONFIG, "elementwise", WarmUpGate(3)):
        torch.testing.assert_close(found[2], wanted[2], rtol=0, atol=1e-12)
        assert float(found[4]) == float(photo >= 3)


def test_float32_stays_near_float64():
    """Folded constants must not cancel."""
    for _, found, wanted in streamed_and_defined(CONFIG, "elementwise", dtype=torch.float32):
        for a, b in zip(found[:3], wanted[:3], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
        torch.testing.assert_close(found[4], wanted[4], rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, 1, 3, 5])
@torch.no_grad()
def test_the_window_laid_out_for_a_device_equals_the_papers(form, length):
    config, layout = FORMS[form]
    definition, device = heads(replace(config, attention="full", window=6), layout, form="window")
    rows, traits = (
        torch.randn(6, config.width + SIGNATURE, dtype=torch.float64),
        torch.full((1, 5, TRAITS), 7.0).double(),
    )
    history = torch.full((1, 5, rows.shape[1]), 7.0, dtype=torch.float64)
    history[0, 5 - length :] = rows[:length]
    traits[0, 5 - length :] = definition.gate.traits(rows[:length])
    wanted = definition(rows[5:], history, torch.tensor([length]), traits)
    for a, b in zip(device(rows[5:], history, torch.tensor([length]), traits), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@torch.no_grad()
def test_one_wrong_slot_is_noticed():
    """The control: keys and values of other photos give another answer."""
    definition, streaming = heads(CONFIG, "elementwise")
    rings, rows = Rings(CONFIG, definition.gate, torch.float64), torch.randn(4, 60, dtype=torch.float64)
    for photo in range(3):
        rings.take_in(streaming(rows[photo : photo + 1], torch.tensor([photo]), *rings.values())[5:])
    right = streaming(rows[3:], torch.tensor([3]), *rings.values())[1]
    rings.states["values_0"][0].select(1, 0).mul_(1.1)
    assert (streaming(rows[3:], torch.tensor([3]), *rings.values())[1] - right).abs().max() > 1e-6


@pytest.mark.parametrize("attention", ["full", "none"])
def test_attention_that_sees_later_photos_cannot_be_streamed(attention):
    with pytest.raises(UsageError, match="cannot be streamed: .* train with block.attention=causal"):
        StreamingIciia(Iciia(replace(CONFIG, attention=attention)))
