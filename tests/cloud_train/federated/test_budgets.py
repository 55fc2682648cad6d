"""Equal budgets, kept rounds, held-out domains, networks from elsewhere: the conditions under which methods compare."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from refocus.cloud_train.backbones.backbone import create_backbone, load_weights
from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.image_tensors import Features, Photos, enlargement
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated import programs
from refocus.cloud_train.federated.checkpoint import CheckpointStore
from refocus.cloud_train.federated.client import Participant, Recipe, answers
from refocus.cloud_train.federated.client_data import chosen_classes, gather, partition
from refocus.cloud_train.federated.delivery.deliver import deliver
from refocus.cloud_train.federated.local_training import ClientRecipe
from refocus.cloud_train.federated.methods import METHODS, PeftSizes, find_method
from refocus.cloud_train.federated.parameters import ClientNetwork, names_in
from refocus.cloud_train.federated.rounds import federate
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates
from refocus.cloud_train.federated.towers import (
    ConvexMap,
    MapRecipe,
    are_foreign,
    class_names,
    convex_map,
    foreign_classes,
    train_map,
)
from refocus.cloud_train.methods.peft.fedclip_adapter import AdaptedTextClassifier, TextClassifier

WIDTH, CLASSES, STEPS = 16, 4, 5
SIZES = dict(img_size=16, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=2)
EACH = ClientRecipe(batch=8, learning_rate=0.05)
RECIPE = Recipe(rounds=3, steps=STEPS, watch=1, full=EACH, parts=EACH, features=EACH, sizes=PeftSizes(3, 4))


def vit(outputs=0, **more):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", num_classes=outputs, **(SIZES | more)).eval()


def build(name):
    method = find_method(name)
    body = vit(8 if method.tower else 0)
    body = body if method.insert is None else method.insert(body, RECIPE.sizes)
    torch.manual_seed(1)
    if method.tower:
        head = TextClassifier(torch.randn(CLASSES, 8), 20.0)
        return ClientNetwork(body, AdaptedTextClassifier(head) if method.text_adapter else head)
    return ClientNetwork(body, *(nn.Linear(WIDTH, CLASSES) for _ in range(1 + method.two_heads)))


def participant(name, recipe=RECIPE):
    return Participant(find_method(name), lambda: build(name), recipe, 0)


def photos(count=19):
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, count)
    pixels = (60 * label)[:, None, None, None] + rng.integers(0, 40, (count, 3, 16, 16))
    half = (0.5,) * 3
    return Photos(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(label), np.zeros(count, int), half, half)


@pytest.fixture(scope="module")
def everybody():
    table = glyphs.glyphs(0, {"test": 4}, 24)
    return gather(table, table.client, small_contract(), 24, 0.0, 0)


def small_contract():
    return msgspec.structs.replace(GLYPH_PREPROCESSING, resize_shorter=16, crop=16)


# ---- steps


@pytest.mark.parametrize("name", [name for name in METHODS if name != "zero-shot"])
def test_every_method_takes_the_same_number_of_steps_in_a_round(name):
    one, data = participant(name), photos()
    reply, _ = one.local_update("a", 1, one.server(["a"], RECIPE).payload("a"), {}, data)
    assert reply.progress.steps == STEPS
    assert reply.progress.photos <= STEPS * EACH.batch
    assert reply.progress.loss > 0
    assert 0 <= reply.progress.right <= reply.progress.photos


def test_steps_go_round_the_photos_in_small_batches():
    one, data = participant("local"), photos(19)
    job = one._job("a", 1, {}, {}, data)
    sizes = [len(label) for _, label in job.batches(1, 7)]
    assert sizes == [7, 6, 6, 7, 6, 6, 7]


def test_batches_of_different_sizes_have_no_equal_steps():
    recipe = replace(RECIPE, parts=replace(EACH, batch=16))
    with pytest.raises(UsageError, match="set all three alike"):
        recipe.of(METHODS["local"])


def test_every_round_is_logged_with_loss_and_accuracy(everybody, tmp_path):
    one = participant_of(everybody, "pfedpg")
    _, checkpoint = federate(one, everybody.members, RECIPE, tmp_path, "pfedpg")
    for record in checkpoint.log:
        assert record["steps"] == STEPS
        assert record["loss"] > 0
        assert 0 <= record["accuracy"] <= 1
        assert record["prompt_difference"] > 0
        assert "validation" in record


def participant_of(clients, name, recipe=RECIPE):
    def make():
        method = find_method(name)
        body = vit() if method.insert is None else method.insert(vit(), recipe.sizes)
        torch.manual_seed(1)
        return ClientNetwork(body, nn.Linear(WIDTH, len(clients.classes)))

    return Participant(find_method(name), make, recipe, 0)


# ---- the round that is kept


@pytest.mark.parametrize("name", ["fedrep", "pfedpg"])
def test_the_best_round_on_validation_photos_is_what_clients_get(name, everybody, tmp_path):
    recipe = replace(RECIPE, rounds=6, keep="best", full=replace(EACH, learning_rate=0.3))
    one = participant_of(everybody, name, recipe)
    server, kept = federate(one, everybody.members, recipe, tmp_path / "whole", name)
    looked = [record["validation"] for record in kept.log]
    assert len(looked) == 6
    assert kept.rounds == 1 + int(np.argmax(looked))
    short = replace(recipe, rounds=kept.rounds, keep="last")
    other, last = federate(participant_of(everybody, name, short), everybody.members, short, tmp_path / "short", name)
    for client in everybody.members:
        one_payload, other_payload = server.payload(client.name), other.payload(client.name)
        assert all(torch.equal(one_payload[key], other_payload[key]) for key in other_payload)
        state = last.clients[client.name]
        assert all(torch.equal(kept.clients[client.name][key], state[key]) for key in state)


def test_a_stopped_run_keeps_the_best_round_of_both_parts(everybody, tmp_path):
    recipe = replace(RECIPE, rounds=6, keep="best", full=replace(EACH, learning_rate=0.3))
    _, whole = federate(participant_of(everybody, "fedrep", recipe), everybody.members, recipe, tmp_path / "a", "")
    for rounds in (3, 6):
        part = replace(recipe, rounds=rounds)
        _, again = federate(participant_of(everybody, "fedrep", part), everybody.members, part, tmp_path / "b", "")
    assert (again.rounds, len(again.log)) == (whole.rounds, len(whole.log))
    assert CheckpointStore(tmp_path / "b").load().rounds == 6


# ---- features that are encoded once


@pytest.mark.parametrize("name", ["head", "fedclip", "fedclip-text", "zero-shot"])
def test_features_encoded_once_give_the_answers_of_photos(name):
    one, data = participant(name), photos()
    seen = one.seen(data)
    assert isinstance(seen, Features)
    assert one.seen(data) is seen
    torch.testing.assert_close(answers(one.network, seen), answers(one.network, data), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedclip-full", "fedavg-clip", "pfedpg", "fedbn", "adapters", "local"])
def test_what_trains_in_front_of_the_features_sees_photos(name):
    data = photos()
    assert participant(name).seen(data) is data


# ---- layers of one's own


def test_each_kind_of_layer_is_chosen_alone():
    network = ClientNetwork(vit(), nn.Linear(WIDTH, CLASSES))
    whole = set(names_in(network, METHODS["local"].own))
    groups = {
        name: set(names_in(network, METHODS[name].own)) for name in ("own-patch", "own-position", "own-attention",
                                                                     "own-mlp", "fedbn", "own-head")}  # fmt: skip
    assert groups["own-position"] == {"body.pos_embed"}
    assert groups["own-patch"] == {"body.patch_embed.proj.weight", "body.patch_embed.proj.bias"}
    assert whole - set().union(*groups.values()) == {"body.cls_token"}
    assert sum(map(len, groups.values())) == len(set().union(*groups.values()))


def test_a_new_fedperfix_from_zero_changes_nothing():
    plain, x = vit(), torch.randn(2, 3, 16, 16)
    network = METHODS["fedperfix-zero"].insert(vit(), PeftSizes(inner=4))
    assert torch.allclose(network(x), plain(x), atol=1e-6)


# ---- clients


def test_nobody_of_a_held_out_domain_trains():
    table = glyphs.glyphs(0, {"test": 12}, 20)
    client = partition(table, "domain", 2, 0.1, 0)
    domain = str(table.domain[0])
    found = gather(table, client, small_contract(), 40, 0.5, 0, domain)
    assert [one.name for one in found.unseen] == [domain]
    assert domain not in {one.name for one in found.members}
    with pytest.raises(DataError, match="no client has photos of it; the domains are"):
        gather(table, client, small_contract(), 40, 0.5, 0, "nowhere")


def test_fewer_classes_are_drawn_and_numbered_anew():
    table = glyphs.glyphs(0, {"test": 6}, 40)
    found = chosen_classes(table, 7, 0)
    assert len(found.classes) == 7
    names = {table.classes[label] for label in table.label} & set(found.classes)
    assert {found.classes[label] for label in found.label} == names
    assert chosen_classes(table, 0, 0) is table


# ---- the network


def test_position_embeddings_are_resized_to_the_network(tmp_path):
    large = vit(3, img_size=32)
    save_file(large.state_dict(), tmp_path / "large.safetensors")
    small = create_backbone("vit_tiny_patch16_224", 3, **SIZES)
    load_weights(small, tmp_path / "large.safetensors")
    stored = large.pos_embed.detach()
    assert torch.equal(small.network.pos_embed[:, :1], stored[:, :1])  # of the class token
    grid = stored[:, 1:].reshape(1, 4, 4, WIDTH).permute(0, 3, 1, 2)
    expected = functional.interpolate(grid, (2, 2), mode="bicubic", antialias=True).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.allclose(small.network.pos_embed[:, 1:], expected, atol=1e-6)


def squares(folder, domains=2, count=160):
    data = photos(count)
    np.savez(folder / "squares.npz", x=data.pixels.permute(0, 2, 3, 1).numpy(), y=data.label.numpy(),
             client=np.arange(count) % domains)  # fmt: skip
    return str(folder / "squares.npz")


def test_a_network_from_scratch_is_drawn_by_the_seed(tmp_path):
    config = FederatedConfig(source=squares(tmp_path), arguments=SIZES, scratch=True, unseen=0.0)
    run = FederatedRun(tmp_path / "run", config)
    first, again, other = (run.build(METHODS["fedavg"], seed) for seed in (0, 0, 1))
    assert torch.equal(first.body.patch_embed.proj.weight, again.body.patch_embed.proj.weight)
    assert not torch.equal(first.body.patch_embed.proj.weight, other.body.patch_embed.proj.weight)
    assert not (tmp_path / "run" / "body.safetensors").exists()
    with pytest.raises(UsageError, match="trains an image tower"):
        run.check(["fedclip"])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"scratch": True, "checkpoint": "x.safetensors"}, "leave one of them out"),
        ({"mean": (0.5,)}, "expected three numbers, of red, green and blue"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, what, tmp_path):
    run = FederatedRun(tmp_path / "run", FederatedConfig(arguments=SIZES, **changes))
    with pytest.raises(UsageError, match=what):
        run.check(["fedavg"])


def test_the_mean_and_deviation_of_a_network_may_be_said(tmp_path):
    config = FederatedConfig(arguments=SIZES, scratch=True, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    contract = FederatedRun(tmp_path / "run", config).preprocessing
    assert (contract.mean, contract.std, contract.crop) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 16)


@pytest.mark.parametrize(("side", "told"), [(16, False), (6, True)])
def test_photos_much_smaller_than_the_networks_input_are_said_to_be(side, told, tmp_path, caplog):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "few.npz", x=rng.integers(0, 255, (60, side, side, 3)).astype(np.uint8), y=np.arange(60) % 3,
             client=np.arange(60) % 2)  # fmt: skip
    run = FederatedRun(tmp_path / "run", FederatedConfig(
        source=str(tmp_path / "few.npz"), unseen=0.0, scratch=True,
        arguments={"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2},
    ))  # fmt: skip
    with caplog.at_level("INFO", "refocus"):
        run.check(["fedavg"])
    assert ("photos are enlarged 2.7 times to the network's 16 pixels" in caplog.text) is told


def test_a_photo_that_pillow_cannot_open_is_passed_over_where_sizes_are_looked_at():
    def read(name):
        stream = io.BytesIO()
        Image.new("RGB", (8, 8)).save(stream, "PNG")
        return b"no photo" if name == "a" else stream.getvalue()

    table = PhotoTable.of(["a", "b"], ["x", "y"], read)
    contract = SimpleNamespace(crop=16)
    assert enlargement(table, contract) == 2.0
    assert enlargement(table.rows(np.array([0])), contract) == 1.0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "zero-shot"])
def test_a_gpu_trains_what_the_processor_does_and_sends_from_the_processor(name):
    found, data = {}, photos()
    for device in ("cpu", "cuda"):
        one = Participant(find_method(name), lambda: build(name), RECIPE, 0, device=device)
        reply, state = one.local_update("a", 1, one.server(["a"], RECIPE).payload("a"), {}, data)
        reply, state = one.local_update("a", 2, reply.tensors, state, data)
        tensors = [*reply.tensors.values(), *state.values()]
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
        found[device] = torch.cat([tensor.flatten() for tensor in tensors])
        assert one.right(one.personal("a", 3, reply.tensors, state, data), data).shape == (len(data),)
        assert one.training_flops(data) > 0
    torch.testing.assert_close(found["cpu"], found["cuda"], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_each_kind_of_layer_is_kept_local_by_one_command(studies, tmp_path):
    config = FederatedConfig(
        source=squares(tmp_path), arguments=SIZES, scratch=True, unseen=0.0, recipe=replace(RECIPE, rounds=1))  # fmt: skip
    FederatedRun(tmp_path / "run", config)
    done = studies("sensitivity", tmp_path / "run", "--seeds", "0", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert len(rows) == 8
    assert rows["all global"]["over_global"]["mean"] == 0
    for name in ("patch embedding", "position embedding", "layer norm", "self-attention", "MLP"):
        assert rows[name]["overall"] == pytest.approx((rows[name]["alone"] + rows[name]["combined"]) / 2)


# ---- towers


def test_classes_with_like_names_are_not_foreign():
    names = ["backpack", "computer keyboard", "teapot", "pencil box", "Mouse"]
    assert are_foreign(names, ["back_pack", "keyboard", "mouse", "mug"]) == [False, False, True, True, False]


def test_photos_of_foreign_classes_alone_teach_a_map():
    label = np.repeat(np.arange(14), 5)
    split = np.where(np.arange(70) % 5 == 0, "test", "train")
    table = PhotoTable.of([str(n) for n in range(70)], [f"class {n:02d}" for n in label], str.encode, split=split)
    found = foreign_classes(table, ["class 03", "class 07"], 3)
    assert "class 03" not in found.classes
    assert (len(found.classes), len(found), set(found.split)) == (12, 36, {"train"})
    with pytest.raises(DataError, match="a map to sentences needs 10 or more"):
        foreign_classes(table, ["class 0"], 3)


def test_a_learned_map_puts_photos_next_to_their_sentences(tmp_path):
    table = chosen_classes(glyphs.glyphs(0, {"test": 8}, 60), 6, 0)
    encoder = create_backbone("vit_tiny_patch16_224", 3, small_contract(), **SIZES)
    texts = torch.randn(len(table.classes), 24)
    recipe = MapRecipe(epochs=300, batch=64, learning_rate=0.05)
    learned = train_map(encoder, table, texts, 100.0, recipe, tmp_path)
    untrained = nn.Linear(WIDTH, 24)
    features, label = torch.from_numpy(extract(encoder, table, tmp_path).take()), torch.from_numpy(table.label)
    shares = [
        float((functional.normalize(made(features), dim=1) @ functional.normalize(texts, dim=1).T).argmax(1).eq(label)
              .float().mean()) for made in (learned, untrained)]  # fmt: skip
    assert shares[0] > shares[1] + 0.1, shares


def names_file(folder, count):
    path = folder / "classes.txt"
    path.write_text("\n".join(f"n{number:08d}_thing_{number}" for number in range(count)) + "\n")
    return path


def test_names_of_classes_lose_their_numbers(tmp_path):
    assert class_names(names_file(tmp_path, 2)) == ["thing 0", "thing 1"]
    with pytest.raises(UsageError, match="cannot be read"):
        class_names(tmp_path / "nothing.txt")


def test_a_convex_map_is_the_mean_of_sentences_by_probability():
    torch.manual_seed(0)
    own, texts = nn.Linear(WIDTH, 4), torch.randn(4, 6)
    made = convex_map(own, ["teapot", "dog", "mouse", "cat"], ["mouse"], lambda names: texts[: len(names)])
    x = torch.randn(2, WIDTH)
    shares = own(x)[:, [0, 1, 3]].softmax(1)
    assert torch.allclose(made(x), shares @ (texts[:3] - texts[:3].mean(0)), atol=1e-6)
    with pytest.raises(UsageError, match="names 2 classes, and the checkpoint's classifier has 4"):
        convex_map(own, ["a", "b"], [], lambda names: texts)


@pytest.mark.parametrize("method", ["fedclip", "fedclip-text", "fedavg-clip"])
def test_a_tower_of_a_checkpoint_trains_and_reaches_devices(method, tmp_path, monkeypatch):
    monkeypatch.setattr(FederatedRun, "_sentences", lambda self, names: torch.eye(24)[: len(names)] + 0.1)
    save_file(vit(12).state_dict(), tmp_path / "vit.safetensors")
    config = FederatedConfig(
        source=squares(tmp_path), arguments=SIZES, checkpoint=str(tmp_path / "vit.safetensors"), unseen=0.0,
        tower_classes=str(names_file(tmp_path, 12)), recipe=RECIPE, feature_rates=(0.01,))  # fmt: skip
    run = FederatedRun(tmp_path / "run", config)
    run.check([method])
    tower, _ = run.tower()
    assert isinstance(tower.head, ConvexMap)
    result = run.result(method, 0, Rates(0.01))
    assert all(one["test"] > 0 for one in result["members"])
    assert result["storage"] > result["trained"] > 0
    checkpoint = deliver(run, method, 0, Rates(0.01))
    encoder = checkpoint.required("encoder")
    body = programs.body_of(encoder.card.config)
    body.load_state_dict(encoder.weights)
    assert checkpoint.weights["texts"].shape == (CLASSES, 24)
    assert Path(encoder.path).exists()
