"""A network of one's own is cut before its classifier, or refused in one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import timm
import torch
from torch import nn

from refocus.edge.bundle import Preprocessing
from refocus.export.errors import ExportError
from refocus.export.program import SIGNATURE, Network, programs_of, split
from refocus.export.program.call_trace import trace_digest
from refocus.export.program.capture import capture
from refocus.export.program.network import example_photo

SIDE = 32
PREPARED = Preprocessing(resize_shorter=36, crop=SIDE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


class Toy(nn.Module):
    """A pooled convolution and whatever stands behind it."""

    def __init__(self, tail: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.stem, self.tail = nn.Conv2d(3, width, 3), tail

    def forward(self, photo):
        return self.tail(self.stem(photo).relu().mean((2, 3)))


def network(module: nn.Module, classes: int = 5) -> Network:
    labels = tuple(f"class {number}" for number in range(classes))
    return Network("toy", module.eval(), PREPARED, labels, {"network": "toy"})


def photo() -> torch.Tensor:
    return torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("tail", "layer", "width"),
    [
        (lambda: nn.Linear(8, 5), "tail", 8),
        (lambda: nn.Linear(8, 5, bias=False), "tail", 8),
        (lambda: nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 5)), "tail.2", 7),
        (lambda: nn.Sequential(nn.Linear(8, 5), nn.ReLU()), "", 5),  # the logits themselves are the feature
        (lambda: nn.Sequential(nn.Linear(8, 5), nn.Dropout()), "tail.0", 8),
    ],
)
def test_encoder_and_classifier_give_the_logits_of_the_network(tail, layer, width):
    torch.manual_seed(0)
    module = Toy(tail()).eval()
    encoder, head, cut = programs_of(network(module))
    assert (cut.layer, cut.weight.shape[1]) == (layer, width)
    feature = encoder.module(photo())
    assert feature.shape == (1, width + SIGNATURE)
    plain, calibrated, logits, attention, trust = head.module(feature)
    for answer in (plain, calibrated, logits):
        torch.testing.assert_close(answer, module(photo()))
    assert attention.tolist() == [[1.0]]
    assert trust.tolist() == [0.0]


def test_a_linear_layer_whose_logits_are_cut_off_for_some_photos_alone_is_no_classifier():
    module = Toy(nn.Sequential(nn.Linear(8, 2), nn.ReLU())).eval()
    with torch.no_grad():
        noise = module.stem(example_photo(SIDE)).relu().mean((2, 3))[0]
        # Logits of 1 for the noise that a network is tried with first, below 0 for photos of higher contrast.
        module.tail[0].weight.copy_(-10 / (noise @ noise) * torch.stack([noise, noise]))
        module.tail[0].bias.fill_(11)
    assert module(example_photo(SIDE)).min() > 0
    assert split(module, SIDE).layer == ""


def test_a_network_that_divides_by_the_contrast_of_a_photo_is_split():
    class Normalising(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.tail = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, photo):
            return self.tail(self.stem(photo / photo.std()).relu().mean((2, 3)))

    assert split(Normalising().eval(), SIDE).layer == "tail"


def test_a_classifier_that_is_used_twice_is_left_where_it_is():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5)
            self.stem = nn.Conv2d(3, 5, 3)

        def forward(self, photo):
            return self.layer(self.layer(self.stem(photo).mean((2, 3))))

    cut = split(Twice().eval(), SIDE)
    assert cut.layer == ""
    assert torch.equal(cut.weight, torch.eye(5))


class Reading(nn.Module):
    """Its forward reads attributes of its classifier, which it has under several names."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        self.head, self.listed = self.layer, [self.layer]

    def forward(self, photo):
        pooled = self.stem(photo).mean((2, 3)).view(-1, self.layer.in_features)
        return self.head(pooled.to(self.layer.weight.dtype))


def test_a_classifier_whose_attributes_are_read_or_that_has_two_names_is_split():
    module = Reading().eval()
    encoder, head, cut = programs_of(network(module))
    assert (cut.layer, cut.weight.shape) == ("layer", (5, 8))
    feature = capture(encoder).module()(photo().repeat(2, 1, 1, 1))[:1]  # of 2 photos: the batch is free
    torch.testing.assert_close(head.module(feature)[0], module(photo()))
    assert not [name for name, _ in encoder.module.named_parameters() if "layer" in name]  # it is in the head alone


def test_a_network_that_cannot_run_without_its_classifier_has_its_logits_as_the_feature():
    class Checks(Reading):
        def forward(self, photo):
            logits = super().forward(photo)
            if logits.shape[1] != 5:
                raise ValueError("expected 5 logits")
            return logits

    cut = split(Checks().eval(), SIDE)
    assert (cut.layer, cut.weight.shape) == ("", (5, 5))


def test_dropout_that_is_always_on_is_named():
    class Dropping(Toy):
        def forward(self, photo):
            return nn.functional.dropout(super().forward(photo))

    with pytest.raises(ExportError, match=r"answers differ by .* on one photo, .*training=self\.training"):
        programs_of(network(Dropping(nn.Linear(8, 5))))


def test_the_network_itself_is_left_unchanged():
    module = Toy(nn.Linear(8, 5)).eval()
    before = module(photo())
    split(module, SIDE)
    assert isinstance(module.tail, nn.Linear)
    assert torch.equal(module(photo()), before)


def test_a_captured_graph_is_cut_before_its_last_operator():
    module = Toy(nn.Linear(8, 5)).eval()
    cut = split(torch.export.export(module, (photo(),)).module(), SIDE)
    assert cut.layer == "tail"
    torch.testing.assert_close(nn.functional.linear(cut.features(photo()), cut.weight, cut.bias), module(photo()))


@pytest.mark.parametrize(
    "name",
    ["mobilenetv2_050", "resnet10t", "convnext_atto", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"],
)
def test_timm_networks_are_cut_whatever_their_classifier_is_called(name):
    module = timm.create_model(name, num_classes=7).eval()
    cut = split(module, 224)
    assert bool(cut.layer) == ("distilled" not in name)  # which averages two classifiers
    given = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        again = nn.functional.linear(cut.features(given), cut.weight, cut.bias)
        torch.testing.assert_close(again, module(given), rtol=1e-4, atol=1e-4)


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, photo):
        return self.make(photo)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda photo: photo, r"returns \(1, 3, 32, 32\) for one photo, expected logits \(1, C\)"),
        (lambda photo: (photo.mean((2, 3)), photo), "returns tuple, expected one tensor of logits"),
        (lambda photo: photo.mean((2, 3))[:, :1], r"returns \(1, 1\)"),
        (lambda photo: photo.mean((2, 3)) * float("nan"), "logits that are not finite"),
        (lambda photo: photo @ torch.ones(7, 7), "cannot run on a photo .* --side"),
    ],
)
def test_a_network_that_does_not_give_logits_is_refused(make, message):
    with pytest.raises(ExportError, match=message):
        split(Returns(make), SIDE, "mine")


def test_labels_that_do_not_fit_the_logits_are_refused():
    with pytest.raises(ExportError, match="gives 5 logits, 4 labels were given"):
        programs_of(network(Toy(nn.Linear(8, 5)), classes=4))


def test_other_weights_or_another_architecture_are_another_network():
    torch.manual_seed(0)
    one, other = network(Toy(nn.Linear(8, 5))), network(Toy(nn.Linear(8, 5)))
    assert one.identity == network(one.module).identity
    assert one.identity != other.identity
    deeper = Toy(nn.Sequential(nn.Linear(8, 5)))
    assert network(deeper).identity != one.identity


# What a network is, and what its batches are


class Calling(nn.Module):
    """A network whose printed modules and weights do not tell what it calls."""

    def __init__(self, call, constant=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.layer, self.call, self.constant = nn.Conv2d(3, 8, 3), nn.Linear(8, 5), call, constant

    def forward(self, photo):
        feature = self.call(self.stem(photo)).mean((2, 3))
        return self.layer(feature if self.constant is None else feature * self.constant)


def test_networks_that_compute_something_else_have_other_feature_spaces():
    ones = torch.ones(8)
    calls = [torch.relu, torch.sin, lambda x: x.clamp(0, 6), lambda x: x.clamp(0, 5)]
    modules = [*map(Calling, calls), *(Calling(torch.relu, constant) for constant in (ones, 2 * ones))]
    found = [programs_of(network(module))[0].identity for module in modules]
    assert len({str(module) for module in modules}) == 1
    assert len(set(found)) == len(modules)
    assert found == [programs_of(network(module))[0].identity for module in modules]


def test_the_calls_of_a_real_network_are_the_same_each_time():
    for name in ("mobilenetv3_small_050", "vit_tiny_patch16_224"):
        module = timm.create_model(name, num_classes=5).eval()
        first, second = (trace_digest(module, example_photo(224)) for _ in range(2))
        assert first == second
        assert first != trace_digest(nn.Sequential(module, nn.ReLU()), example_photo(224))


IDENTITIES = """
import sys
import torch
from torch import nn
from refocus.export.program import NetworkSettings, open_network

class Prints(nn.Module):
    def forward(self, feature):
        torch._assert(feature.shape[1] == 8, "expected 8 values")
        return feature.relu()
    def extra_repr(self):
        return str(self.forward.__func__)

def build():
    torch.manual_seed(0)
    tail = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5))
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Prints(), tail)

before = bytearray(int(sys.argv[1]))  # so that what follows lies elsewhere in memory
settings = NetworkSettings(preprocessing={"crop": 32, "resize_shorter": 36})
for name in ["__main__:build", *sys.argv[2:]]:
    print(open_network(name, settings).identity)
"""


@pytest.mark.slow
def test_a_network_that_is_exported_again_elsewhere_keeps_its_feature_space(tmp_path):
    """In another process, and a saved program in another folder under another name."""
    program, again = tmp_path / "net.pt2", tmp_path / "copies" / "other.pt2"
    torch.export.save(torch.export.export(Toy(nn.Linear(8, 5)).eval(), (photo(),)), program)
    again.parent.mkdir()
    shutil.copy(program, again)
    asked = [sys.executable, "-c", IDENTITIES]
    processes = [
        subprocess.Popen(
            [*asked, str(number << 20), str(program), str(again)],
            env=os.environ | {"PYTHONHASHSEED": str(number)}, stdout=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip
    found = [process.communicate()[0].split() for process in processes]
    assert found[0] == found[1]
    of_function, of_program, of_copy = found[0]
    assert of_program == of_copy != of_function


def test_a_network_of_whole_batches_is_exported_for_one_photo_at_a_time():
    def made(norm):
        module = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        return programs_of(network(module))[0].inputs[0].shape[0]

    assert made(nn.BatchNorm2d(8)) == "batch"
    assert made(nn.BatchNorm2d(8, track_running_stats=False)) == 1


def test_the_feature_of_a_photo_is_computed_once():
    from refocus.export.program.eager_recognizer import Remembered

    seen = []

    class Encoder(nn.Module):
        def forward(self, photo, prompt):
            seen.append(photo)
            return photo.mean((2, 3)) + prompt

    once, photo, prompt = Remembered(Encoder()), torch.randn(1, 3, 8, 8), torch.ones(1, 3)
    features = [once(*given) for given in ((photo, prompt), (photo + 1, prompt), (photo.clone(), prompt))]
    assert len(seen) == 2
    assert torch.equal(features[0], features[2])
    assert not torch.equal(features[0], features[1])
    assert not torch.equal(once(photo, 2 * prompt), features[0])
