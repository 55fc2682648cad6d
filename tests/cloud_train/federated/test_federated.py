"""Federated personalisation: each method trains what it says, sends what it says, and goes on where it was."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.data.sources import load_arrays, omniglot
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate.clients import about_clients, study_federated
from refocus.cloud_train.federated.checkpoint import CheckpointStore
from refocus.cloud_train.federated.client import Participant, Recipe, answers
from refocus.cloud_train.federated.client_data import assert_no_photo_twice, gather, partition
from refocus.cloud_train.federated.deployment.plan import packed
from refocus.cloud_train.federated.local_training import ClientRecipe
from refocus.cloud_train.federated.methods import METHODS, PeftSizes, find_method
from refocus.cloud_train.federated.parameters import ClientNetwork, names_in, peft_modules, put, taken, tensors_of
from refocus.cloud_train.federated.rounds import federate, sampled, size
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun
from refocus.cloud_train.federated.server import MeanServer, PromptServer, Reply
from refocus.cloud_train.methods.peft.adapters import insert_adapters
from refocus.cloud_train.methods.peft.delegated_vit import DelegatedViT
from refocus.cloud_train.methods.peft.fedclip_adapter import AttAI, TextClassifier, contrastive_loss
from refocus.cloud_train.methods.peft.prefixes import PrefixedAttention, insert_prefixes
from refocus.cloud_train.methods.peft.prompt_generator import AttentionGenerator, PromptBank
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.edge.personal import file_name
from refocus.export.program.checkpoint import load_checkpoint
from studies.report.results_page import results_pages

WIDTH, CLASSES = 16, 6
RECIPE = Recipe(rounds=2, full=ClientRecipe(epochs=1, batch=16), parts=ClientRecipe(epochs=1, batch=16),
                sizes=PeftSizes(prompts=3, inner=4))  # fmt: skip


def vit(classes: int = 0, **more) -> nn.Module:
    torch.manual_seed(0)
    about = dict(img_size=16, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=2, num_classes=classes) | more
    return timm.create_model("vit_tiny_patch16_224", **about).eval()


def build(name: str) -> ClientNetwork:
    return network_of(name, CLASSES)


def network_of(name: str, classes: int) -> ClientNetwork:
    method = find_method(name)
    body = vit(8 if method.tower else 0)
    body = body if method.insert is None else method.insert(body, RECIPE.sizes)
    torch.manual_seed(1)
    if method.tower:
        return ClientNetwork(body, TextClassifier(torch.randn(classes, 8), 20.0))
    return ClientNetwork(body, *(nn.Linear(WIDTH, classes) for _ in range(1 + method.two_heads)))


def participant(name: str, seed: int = 0) -> Participant:
    return Participant(find_method(name), lambda: build(name), RECIPE, seed)


def photos(seed: int = 0, count: int = 32) -> Photos:
    """Squares of a brightness that tells the class: something to learn in a few steps."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, count)
    pixels = np.broadcast_to((40 * label)[:, None, None, None], (count, 3, 16, 16)) + rng.integers(
        0, 9, (count, 3, 16, 16)
    )
    half = (0.5,) * 3
    return Photos(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(label), np.zeros(count, int), half, half)


@pytest.fixture(scope="module")
def everybody():
    table = glyphs.glyphs(0, {"test": 6}, 30)
    contract = replace_crop(16)
    return gather(table, table.client, contract, 30, 0.34, 0)


def replace_crop(side: int):
    return msgspec.structs.replace(GLYPH_PREPROCESSING, resize_shorter=side, crop=side)


# ---- what is inserted


@pytest.mark.parametrize("deep", [False, True])
def test_no_prompts_leave_the_network_as_it_was(deep):
    network, x = vit(), torch.randn(2, 3, 16, 16)
    assert torch.allclose(PromptedViT(copy.deepcopy(network), 0, deep)(x), network(x), atol=1e-6)


def test_deep_prompts_replace_those_of_the_block_before():
    prompted = PromptedViT(vit(), 3, deep=True)
    tokens = prompted.prompts.tokens
    assert tokens.shape == (2, 3, WIDTH)
    seen = []
    for block in prompted.network.blocks:
        block.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    prompted(torch.randn(1, 3, 16, 16))
    assert all(torch.equal(given[0, 1:4], own) for given, own in zip(seen, tokens, strict=True))
    assert {given.shape[1] for given in seen} == {1 + 3 + 4}


def test_a_network_pooled_over_its_tokens_is_not_pooled_over_prompts():
    network, x = vit(class_token=False, global_pool="avg"), torch.randn(2, 3, 16, 16)
    prompted = PromptedViT(network, 3)
    seen = []
    network.norm.register_forward_hook(lambda module, given, result: seen.append(result))
    features = prompted(x)
    assert seen[0].shape[1] == 4
    assert torch.allclose(features, network.forward_head(seen[0], pre_logits=True))


def test_a_zero_prefix_and_a_new_adapter_change_nothing():
    network, x = vit(), torch.randn(2, 3, 16, 16)
    for source in ("adapter", "linear"):
        added = insert_prefixes(copy.deepcopy(network), "added", source, 4, zero=True)
        assert torch.allclose(added(x), network(x), atol=1e-6)
    assert torch.allclose(insert_adapters(copy.deepcopy(network), 4)(x), network(x), atol=1e-6)


def test_a_concatenated_prefix_is_a_mixture_of_two_attentions():
    """Eq. 6 of FedPerfix: (1 - lambda) of the shared attention and lambda of the one over the prefix, per head."""
    attention, x = vit().blocks[0].attn, torch.randn(2, 5, WIDTH)
    own = PrefixedAttention(attention, insert_prefixes(vit(), "concatenated", "adapter", 4, 1.5).blocks[0].attn.prefix)
    query, key, value = (own._heads(part) for part in attention.qkv(x).chunk(3, dim=-1))
    prefix_key, prefix_value = (own._heads(part) for part in own.prefix(x).chunk(2, dim=-1))
    shared, personal = ((query * attention.scale) @ k.transpose(2, 3) for k in (key, prefix_key))
    share = personal.exp().sum(-1, keepdim=True) / (personal.exp().sum(-1) + shared.exp().sum(-1))[..., None]
    mixture = (1 - share) * (shared.softmax(-1) @ value) + share * (personal.softmax(-1) @ prefix_value)
    assert torch.allclose(own(x), attention.proj(mixture.transpose(1, 2).flatten(2)), atol=1e-6)


def test_an_adapter_learns_in_both_of_its_matrices():
    """With both at zero, as published, neither ever gets a gradient."""
    network = insert_adapters(vit(CLASSES), 4)
    adapter = network.blocks[0].mlp[1]
    for _ in range(2):
        loss = functional.cross_entropy(network(torch.randn(8, 3, 16, 16)), torch.arange(8) % CLASSES)
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter -= 0.1 * parameter.grad
    assert adapter.down.weight.grad.abs().max() > 0
    assert adapter.up.weight.grad.abs().max() > 0


def test_prompts_into_a_convolutional_network_are_refused():
    with pytest.raises(UsageError, match="prompts need a vision transformer .* ResNet is not one"):
        PromptedViT(timm.create_model("resnet10t"), 3)


def test_vectors_cannot_be_added_to_tokens():
    with pytest.raises(UsageError, match="a prefix from vectors cannot be added"):
        insert_prefixes(vit(), "added", "vectors")


def test_attention_over_features_begins_near_zero_shot_and_has_the_papers_size():
    torch.manual_seed(0)
    attai, features = AttAI(64), torch.randn(32, 64)
    assert functional.cosine_similarity(attai(features), features).min() > 0.9
    classifier = TextClassifier(torch.randn(10, 64), 100.0)
    assert torch.allclose(classifier(features), classifier(features / 64), atol=1e-3)
    assert sum(parameter.numel() for parameter in AttAI(512).parameters()) == 525_312


def test_the_published_loss_punishes_photos_of_one_class_for_each_other():
    label = torch.tensor([0, 0, 1])
    perfect = 100.0 * functional.one_hot(label, 2).float()
    assert functional.cross_entropy(perfect, label) < 1e-6
    assert contrastive_loss(perfect, label) > 0.4  # two of three photos share a sentence


# ---- pFedPG's generator


def test_the_generators_gradient_is_that_of_the_chain_rule():
    torch.manual_seed(0)
    bank = PromptBank(torch.randn(3, WIDTH), 4, inner=8)
    target = torch.randn(3, WIDTH)
    given = bank.prompts(2)
    slope = 2 * (given - target).detach()  # of the client's loss |P - target|^2
    loss = ((bank.prompts(2) - target) ** 2).sum()
    expected = torch.autograd.grad(loss, [*bank.parameters()], allow_unused=True)
    bank.backward(2, (given - slope).detach())  # one plain step of rate 1 at the client
    for parameter, other in zip(bank.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, other, atol=1e-5)
    assert bank.descriptors.grad[[0, 1, 3]].abs().max() == 0  # nobody else's descriptor moves


@pytest.mark.parametrize(("sign", "converges"), [(1, True), (-1, False)])
def test_the_printed_sign_of_eq_5_drives_prompts_away_from_what_clients_find(sign, converges):
    torch.manual_seed(0)
    bank = PromptBank(0.1 * torch.randn(3, WIDTH), 2, inner=8)
    targets = [torch.randn(3, WIDTH), torch.randn(3, WIDTH)]
    optimiser = torch.optim.SGD(bank.parameters(), 0.02)
    ways = []
    for _ in range(150):
        optimiser.zero_grad()
        for client, target in enumerate(targets):
            given = bank.prompts(client)
            trained = (given - 0.5 * (given - target)).detach()
            given.backward(sign * (given.detach() - trained))
        optimiser.step()
        ways.append(sum(float((bank.prompts(c) - t).norm()) for c, t in enumerate(targets)))
        if ways[-1] > 1e3:
            break
    assert (ways[-1] < 0.75 * ways[0]) if converges else (ways[-1] > 10 * ways[0])


def test_one_descriptor_moves_all_prompts_alike():
    torch.manual_seed(0)
    base = torch.randn(3, WIDTH)
    moved = AttentionGenerator(3, WIDTH, 8)(base, torch.randn(WIDTH)) - base
    assert torch.allclose(moved, moved[:1].expand(3, -1), atol=1e-6)


# ---- parts


def test_parts_are_chosen_by_module_and_blocks_of_two_digits_are_not_mixed_up():
    network = ClientNetwork(insert_prefixes(vit(depth=12), inner=4), nn.Linear(WIDTH, CLASSES))
    names = names_in(network, [lambda n: [n.body.blocks[1]]])
    assert names
    assert all(name.startswith("body.blocks.1.") for name in names)
    assert len(names_in(network, [peft_modules])) == 12 * 4


@pytest.mark.parametrize("name", [*METHODS])
def test_a_method_changes_what_it_trains_and_nothing_else(name):
    one = participant(name)
    before = {key: value.detach().clone() for key, value in tensors_of(one.network).items()}
    payload = one.server(["a"], RECIPE).payload("a")
    reply, state = one.local_update("a", 1, payload, {}, photos())
    after = tensors_of(one.network)
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved <= {*one.shared, *one.own}
    assert set(reply.tensors) == set(one.shared) == set(payload)
    assert set(one.own) <= set(state)
    assert bool(moved) == (name != "zero-shot")
    assert bool(moved & set(one.shared)) == bool(one.shared)


def test_the_server_never_sees_what_is_a_clients_own():
    for name in METHODS:
        one = participant(name)
        reply, _ = one.local_update("a", 1, one.server(["a"], RECIPE).payload("a"), {}, photos())
        assert not set(reply.tensors) & set(one.own), name


def test_a_client_alone_learns_and_sends_nothing():
    one, data = participant("local"), photos(count=64)
    state = {}
    for number in range(1, 31):
        reply, state = one.local_update("a", number, {}, state, data)
    assert size(reply.tensors) == 0
    assert (answers(one.received({}, state), data).argmax(1) == data.label).float().mean() > 0.5


def test_a_restarted_client_trains_as_if_it_had_not_stopped():
    data = photos()
    first, second = participant("fedperfix"), participant("fedperfix")
    payload = first.server(["a"], RECIPE).payload("a")
    _, state = first.local_update("a", 1, payload, {}, data)
    again, _ = first.local_update("a", 2, payload, state, data)
    other, _ = second.local_update("a", 2, payload, state, data)
    assert all(torch.equal(again.tensors[key], other.tensors[key]) for key in again.tensors)


def test_apfl_is_judged_by_its_mixture():
    one, data = participant("apfl"), photos()
    payload = one.server(["a"], RECIPE).payload("a")
    reply, state = one.local_update("a", 1, payload, {}, data)
    mixing = float(state["mixing"])
    assert 0 <= mixing <= 1
    network = one.personal("a", 2, reply.tensors, state, data)
    name = "head.weight"
    expected = mixing * state[f"v.{name}"] + (1 - mixing) * reply.tensors[name]
    assert torch.allclose(tensors_of(network)[name], expected, atol=1e-6)


def test_per_fedavg_steps_along_the_gradient_of_where_one_step_leads():
    recipe = replace(RECIPE, full=replace(RECIPE.full, clip=1e9, weight_decay=0.0, batch=32))
    one, data = Participant(find_method("per-fedavg"), lambda: build("per-fedavg"), recipe, 0), photos(count=32)
    payload = one.server(["a"], RECIPE).payload("a")
    reply, _ = one.local_update("a", 1, payload, {}, data)
    network = build("per-fedavg")
    put(network, payload)
    rows = np.array_split(np.random.default_rng((0, 1, 0xE8B7BE43)).permutation(32), 2)  # crc32 of "a"
    values = dict(network.named_parameters())

    def loss(parameters, part):
        return functional.cross_entropy(functional_call(network, parameters, (data.batch(part),)), data.label[part])

    def slopes(parameters, part):
        return torch.autograd.grad(loss(parameters, part), [*parameters.values()])

    ahead = {n: (v - RECIPE.full.learning_rate * s).detach().requires_grad_()
             for (n, v), s in zip(values.items(), slopes(values, rows[0]), strict=True)}  # fmt: skip
    for (name, value), slope in zip(values.items(), slopes(ahead, rows[1]), strict=True):
        assert torch.allclose(reply.tensors[name], value - RECIPE.full.learning_rate * slope, atol=1e-5), name


def test_balanced_softmax_is_what_teaches_the_generic_classifier_of_fedrod():
    """Where a client has one class alone, the generic classifier has nothing to learn from it; the own one has."""
    one, data = participant("fedrod"), photos()
    data = replace(data, label=torch.zeros_like(data.label))
    payload = one.server(["a"], RECIPE).payload("a")
    reply, state = one.local_update("a", 1, payload, {}, data)
    moved = (reply.tensors["head.weight"] - payload["head.weight"]).abs().max()
    own = (state["personal.weight"] - one._first["personal.weight"]).abs().max()
    assert own > 20 * moved


def test_a_mixture_that_reached_zero_can_leave_it():
    """APFL's own slope does not vanish there, though that of the client's model does."""
    one, data = participant("apfl"), photos()
    payload = one.server(["a"], RECIPE).payload("a")
    own = {f"v.{name}": value + 0.3 * torch.randn_like(value) for name, value in payload.items()}
    found = [float(one.local_update("a", number, payload, {**own, "mixing": torch.tensor(0.0)}, data)[1]["mixing"])
             for number in range(1, 9)]  # fmt: skip
    assert max(found) > 0


def test_a_newcomer_of_fedrod_is_served_by_the_shared_classifier_alone(tmp_path):
    squares = photos(count=80)
    np.savez(tmp_path / "squares.npz", x=squares.pixels.permute(0, 2, 3, 1).numpy(), y=squares.label.numpy(),
             client=np.arange(80) % 2)  # fmt: skip
    about = dict(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    run = FederatedRun(tmp_path / "run", FederatedConfig(
        source=str(tmp_path / "squares.npz"), checkpoint=str(small_checkpoint(tmp_path)), arguments=about, unseen=0.0))  # fmt: skip
    first, second = (run.build(find_method("fedrod"), 0) for _ in range(2))
    assert first.personal is not None
    assert not any(parameter.any() for parameter in first.personal.parameters())
    assert torch.equal(first.head.weight, second.head.weight)


def test_a_descriptor_moves_only_in_rounds_of_its_client():
    server = participant("pfedpg").server(["a", "b"], RECIPE)
    for _ in range(3):
        server.aggregate({"a": Reply({n: v + 1 for n, v in server.payload("a").items()}, 8),
                          "b": Reply({n: v - 1 for n, v in server.payload("b").items()}, 8)})  # fmt: skip
    before = server.bank.descriptors.detach().clone()
    server.aggregate({"a": Reply({n: v + 1 for n, v in server.payload("a").items()}, 8)})
    after = server.bank.descriptors.detach()
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])


def test_the_proximal_term_keeps_a_client_near_what_it_received():
    ways = []
    for pull in (0.0, 10.0):
        recipe = replace(RECIPE, full=replace(RECIPE.full, proximal=pull, weight_decay=0.0, epochs=4))
        one = Participant(find_method("fedprox"), lambda: build("fedprox"), recipe, 0)
        payload = one.server(["a"], recipe).payload("a")
        reply, _ = one.local_update("a", 1, payload, {}, photos())
        ways.append(sum(float(((reply.tensors[n] - payload[n]) ** 2).sum()) for n in payload))
    assert ways[1] < 0.7 * ways[0]


# ---- the server


def test_a_mean_is_weighted_by_photos():
    server = MeanServer({"w": torch.zeros(2)})
    server.aggregate({"a": Reply({"w": torch.tensor([1.0, 0.0])}, 30), "b": Reply({"w": torch.tensor([0.0, 1.0])}, 10)})
    assert torch.allclose(server.payload("c")["w"], torch.tensor([0.75, 0.25]))


def test_prompts_differ_by_client_and_a_stranger_gets_those_of_the_mean_descriptor():
    server = participant("pfedpg").server(["a", "b"], RECIPE)
    assert isinstance(server, PromptServer)
    [a], [b], [stranger] = (server.payload(name).values() for name in ("a", "b", "nobody"))
    assert (a - b).square().mean().sqrt() > 1e-3 * a.square().mean().sqrt()
    bank = server.bank
    assert torch.allclose(stranger[0], bank.generator(bank.base, bank.descriptors.mean(0)), atol=1e-6)


def test_deep_prompts_are_not_generated():
    with pytest.raises(UsageError, match="generated prompts are shallow"):
        PromptServer("p", torch.zeros(2, 3, WIDTH), ["a"], "attention", RECIPE.generator, 0)


# ---- the engine


def test_a_federation_that_was_stopped_ends_where_an_unbroken_one_does(everybody, tmp_path):
    recipe = replace(RECIPE, rounds=4, participation=0.6)
    for name in ("pfedpg", "apfl", "fedperfix", "fedclip"):
        method = find_method(name)
        make = functools.partial(network_of, name, len(everybody.classes))
        whole = Participant(method, make, recipe, 3)
        _, kept = federate(whole, everybody.members, recipe, tmp_path / name / "whole", name)
        for rounds in (2, 4):  # another process each time
            part = Participant(method, make, recipe, 3)
            _, again = federate(
                part, everybody.members, replace(recipe, rounds=rounds), tmp_path / name / "parts", name
            )
        assert same(kept.server, again.server)
        assert kept.clients.keys() == again.clients.keys()
        assert all(same(kept.clients[client], again.clients[client]) for client in kept.clients)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_what_a_client_wrote_for_a_round_that_never_counted_is_dropped(tmp_path):
    store, one = CheckpointStore(tmp_path), {"x": torch.ones(1)}
    store.save(1, {"w": torch.zeros(1)}, {"a/b": one}, [{"round": 1}])
    folder = tmp_path / "clients" / "a%2Fb"
    (folder / "000002.safetensors").write_bytes((folder / "000001.safetensors").read_bytes()[:40])  # killed mid-write
    kept = store.load()
    assert kept.rounds == 1
    assert same(kept.clients["a/b"], one)
    assert kept.log == [{"round": 1}]


def test_clients_whose_names_no_folder_can_have_are_kept_and_found_again(tmp_path):
    names = ["a/b", "...", "..", ".", "x" * 255, "x" * 256, "\u043a\u043b\u0438\u0435\u043d\u0442" * 9, "\u5ba2" * 60]
    store, own = CheckpointStore(tmp_path / "run"), {name: {"x": torch.tensor([n])} for n, name in enumerate(names)}
    for number in (1, 2):
        store.save(number, {"w": torch.zeros(1)}, own, [{"round": number}])
    kept = store.load()
    assert kept.clients == own
    folders = {path.name for path in (tmp_path / "run" / "clients").iterdir()}
    assert folders >= {"a%2Fb", "...", "x" * 255}  # as in runs of before: those resume
    assert len(folders) == len(names)
    assert len([*tmp_path.rglob("*.safetensors")]) == len(names) + 1


def test_files_of_clients_whose_names_no_file_can_have_are_written(tmp_path):
    assert file_name("a/b") == "a%2Fb.safetensors"
    for name in ("x" * 250, "\u043a" * 45, "\u5ba2" * 60):
        (tmp_path / file_name(name)).write_bytes(b"")
    assert len([*tmp_path.glob("*.safetensors")]) == 3


def test_a_damaged_round_is_said_and_not_taken_for_none(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"w": torch.zeros(1)}, {}, [])
    (tmp_path / "server" / "000001.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="holds a damaged round"):
        store.load()


def test_who_trains_depends_on_the_seed_and_the_round_alone():
    names = [str(number) for number in range(10)]
    assert sampled(names, 0.3, 1, 5) == sampled(names, 0.3, 1, 5)
    assert len(sampled(names, 0.3, 1, 5)) == 3
    assert {tuple(sampled(names, 0.3, 1, number)) for number in range(5)} != {tuple(sampled(names, 0.3, 1, 1))}


# ---- the papers' messages


def shared_numbers(name: str, backbone: str, sizes: PeftSizes, classes: int = 10) -> tuple[int, int]:
    """Numbers that a client sends in a round, and numbers of its whole network."""
    method = find_method(name)
    with torch.device("meta"):
        body = timm.create_model(backbone, num_classes=0)
        body = body if method.insert is None else method.insert(body, sizes)
        network = ClientNetwork(
            body, nn.Linear(body.network.num_features if name in ("pfedpg", "fedvpt-d") else body.num_features, classes)
        )
        own = set(names_in(network, method.own))
        names = [tensor for tensor in names_in(network, method.shared) if tensor not in own]
        everything = tensors_of(network)
    return sum(everything[n].numel() for n in names), sum(value.numel() for value in everything.values())


def test_messages_are_of_the_papers_sizes():
    assert shared_numbers("pfedpg", "vit_base_patch16_224", PeftSizes(10))[0] == 7_680
    assert shared_numbers("fedvpt-d", "vit_base_patch16_224", PeftSizes(12))[0] == 9_216
    sent, _ = shared_numbers("fedperfix", "vit_small_patch16_224", PeftSizes(inner=256), 1000)
    plain = sum(p.numel() for p in timm.create_model("vit_small_patch16_224", num_classes=1000).parameters())
    assert plain == 22_050_664
    assert round(sent / 2**20, 2) == 20.66
    assert 0.98 < sent / plain < 0.985


def test_a_message_is_its_numbers_and_a_header():
    """What each paper's column counts, in bytes that travel: prompts, FedCLIP's attention, FedPerfix's network."""
    vit = timm.create_model("vit_small_patch16_224", num_classes=1000)
    for message, numbers in (
        ({"body.prompts.tokens": torch.zeros(1, 10, 768)}, 7_680),
        (AttAI(512).state_dict(), 525_312),
        ({name: value for name, value in vit.state_dict().items() if not name.startswith("head.")}, 21_665_664),
    ):
        sent = packed(message)
        assert size(dict(message)) == len(sent)
        assert 0 < len(sent) - 4 * numbers < 100 * len(message) + 100


# ---- clients


def test_no_photo_is_on_both_sides_of_a_client_or_with_two_clients(everybody):
    seen = set()
    for client in (*everybody.members, *everybody.unseen):
        for part in (client.train, client.validation, client.test):
            for photo in part.pixels:
                key = photo.numpy().tobytes()
                assert key not in seen
                seen.add(key)


def test_a_photo_in_two_parts_is_refused():
    pixels = np.zeros((3, 3, 2, 2), dtype=np.uint8)
    pixels[1:] = np.arange(2)[:, None, None, None] + 1
    assert_no_photo_twice(pixels, [np.array([0]), np.array([1, 2])])
    with pytest.raises(DataError, match="is in two splits"):
        assert_no_photo_twice(pixels, [np.array([0, 1]), np.array([1, 2])])
    pixels[2] = pixels[0]
    with pytest.raises(DataError, match="is in two splits"):
        assert_no_photo_twice(pixels, [np.array([0]), np.array([1, 2])])


def test_partitions_deal_photos_as_they_are_named():
    table = glyphs.glyphs(0, {"test": 9}, 20)
    disjoint = partition(table, "disjoint", 5, 0.1, 0)
    owners = {label: set(disjoint[table.label == label]) for label in np.unique(table.label)}
    assert all(len(found) == 1 for found in owners.values())
    nested = partition(table, "domain-dirichlet", 2, 1.0, 0)
    assert all(name.split("/")[0] == domain for name, domain in zip(nested, table.domain, strict=True))
    with pytest.raises(UsageError, match="partition x: expected natural"):
        partition(table, "x", 2, 1.0, 0)
    with pytest.raises(DataError, match="all photos are of one domain"):
        partition(table.rows(table.domain == table.domain[0]), "domain", 2, 1.0, 0)


def test_two_clients_are_the_fewest(tmp_path):
    table = glyphs.glyphs(0, {"test": 1}, 20)
    with pytest.raises(DataError, match="1 clients have 15 photos or more"):
        gather(table, table.client, replace_crop(16), 20, 0.0, 0)


def dealt(*clients):
    """Photos of clients, each with so many to train on and so many for judging."""
    sizes = [train + test for train, test in clients]
    split = np.concatenate([np.repeat(["train", "test"], each) for each in clients])
    client = np.repeat([f"c{number}" for number in range(len(clients))], sizes)
    return replace(glyphs.glyphs(0, {"test": 1}, sum(sizes)), client=client, split=split)


def test_a_client_with_one_photo_to_train_on_refuses_no_other(caplog):
    table = dealt((20, 10), (1, 14), (2, 13), (3, 1))
    with caplog.at_level("INFO"):
        found = gather(table, table.client, replace_crop(16), 30, 0.0, 0)
    assert [client.name for client in found.members] == ["c0", "c2"]
    assert "1 of 4 clients have fewer than 15 photos: left out" in caplog.text
    assert "1 of 4 clients have one photo that is not for judging" in caplog.text
    assert "left out, as c1" in caplog.text
    table = dealt((20, 10), (1, 14))
    with pytest.raises(DataError, match="1 clients have 15 photos or more, two of them not for judging"):
        gather(table, table.client, replace_crop(16), 30, 0.0, 0)


def test_newcomers_leave_somebody_who_trains():
    table = dealt((20, 10), (20, 10))
    found = gather(table, table.client, replace_crop(16), 30, 0.9, 0)
    assert (len(found.members), len(found.unseen)) == (1, 1)


def test_photos_in_folders_of_their_classes_are_of_no_client_until_they_are_dealt(refocus, tmp_path):
    squares = photos(count=80)
    for number, (pixels, label) in enumerate(zip(squares.pixels, squares.label.tolist(), strict=True)):
        path = tmp_path / "photos" / f"class-{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    (tmp_path / "small.toml").write_text(
        f"clients = 2\nalpha = 100\nunseen = 0\n{SMALL_NETWORK}[recipe]\nrounds = 1\nsteps = 1\nkeep = 'last'\n"
    )
    asked = ["train", "federated", tmp_path / "run", "--data", tmp_path / "photos", "--methods", "fedavg", "--seeds",
             "0", "--checkpoint", small_checkpoint(tmp_path), "--config", tmp_path / "small.toml"]  # fmt: skip
    done = refocus(*asked)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "no photo names a client; set client_column to the column of the metadata that does, or choose another"
        " partition"
    )
    assert not (tmp_path / "run").exists()
    again = refocus(*asked, "--set", "partition=dirichlet")
    assert again.returncode == 0, again.stderr


def test_an_unknown_method_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean pfedpg"):
        find_method("pfedgp")


def test_taken_tensors_are_copies():
    network = build("local")
    found = taken(network, ["head.bias"])
    found["head.bias"] += 1
    assert not torch.equal(found["head.bias"], network.head.bias)
    with pytest.raises(UsageError, match="not a parameter of this network"):
        put(network, {"nothing": torch.zeros(1)})


def test_everybody_is_there(everybody):
    assert len(everybody.members) + len(everybody.unseen) == 6
    assert len(everybody.unseen) == 2


@pytest.mark.slow
def test_one_command_trains_judges_and_goes_on_where_it_was(refocus, tmp_path):
    """And always with clients alone and one network for all."""
    squares = photos(count=160)
    np.savez(tmp_path / "squares.npz", x=squares.pixels.permute(0, 2, 3, 1).numpy(), y=squares.label.numpy(),
             client=np.arange(160) % 4)  # fmt: skip
    about = ["--data", str(tmp_path / "squares.npz"), "--backbone", "vit_tiny_patch16_224", "--json", "--seeds", "0",
             "--checkpoint", str(small_checkpoint(tmp_path)), "--config", str(tmp_path / "small.toml")]  # fmt: skip
    (tmp_path / "small.toml").write_text(
        f"rates = [0.05]\npart_rates = [0.000001, 0.5]\nfeature_rates = [0.001]\n{SMALL_NETWORK}"
        "[recipe]\nrounds = 2\nfull.epochs = 12\nparts.epochs = 12\n"
    )
    asked = ["train", "federated", str(tmp_path / "run"), *about]
    done = refocus(*asked, "--methods", "head,pfedpg")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert [*rows] == ["local", "fedavg", "head", "pfedpg", "pfedpg, base prompts alone"]
    assert [rows[name]["numbers"] for name in ("local", "head", "pfedpg")] == [0, 0, 10 * 16]
    reached = {
        rate: CheckpointStore(tmp_path / "run" / "seed-0" / f"head-{rate:g}").load().log[-1]["validation"]
        for rate in (0.5, 1e-6)
    }
    assert reached[0.5] != reached[1e-6]
    assert rows["head"]["rates"]["client"] == max(reached, key=lambda rate: reached[rate])
    assert rows["local"]["over"]["local"]["mean"] == 0
    write_results(json.loads(done.stdout), tmp_path / "results" / "clients.json")
    page = results_pages(tmp_path / "results").text
    assert "| pFedPG |" in page
    assert "over each client alone" in page
    (order,) = json.loads(done.stdout)["orders"]  # the only one of the papers whose methods are both there
    assert order["other"] == "pfedpg, base prompts alone"
    gain = rows["pfedpg"]["used"] - rows["pfedpg, base prompts alone"]["used"]
    assert order["difference"]["mean"] == pytest.approx(gain)
    assert "| pFedPG over pFedPG, base prompts alone | pFedPG Table 4 |" in page
    stages = sorted((tmp_path / "run").rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in stages]
    again = refocus(*asked, "--methods", "pfedpg")
    assert {row["name"]: row for row in json.loads(again.stdout)["rows"]} == {
        n: r for n, r in rows.items() if n != "head"
    }
    assert [path.stat().st_mtime_ns for path in stages] == times
    other = refocus(*asked, "--set", "rates=[0.1]")
    assert other.returncode == 1
    assert "holds a run with other settings" in other.stderr


def test_a_network_from_scratch_and_the_best_round_are_said_to_be_that(tmp_path):
    squares = photos(count=80)
    np.savez(tmp_path / "squares.npz", x=squares.pixels.permute(0, 2, 3, 1).numpy(), y=squares.label.numpy(),
             client=np.arange(80) % 2)  # fmt: skip
    about = dict(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
    recipe = replace(RECIPE, watch=1, keep="best")
    config = FederatedConfig(str(tmp_path / "squares.npz"), unseen=0, arguments=about, scratch=True, recipe=recipe)
    document = study_federated(FederatedRun(tmp_path / "run", config), [], [0], "refocus train federated")
    assert (document["pretrained"], document["keep"]) == ("from scratch", "best")
    for row in document["rows"]:
        validation = dict(row["curve"])
        assert validation[row["kept_rounds"][0]] == max(validation.values())
    assert "'num_heads': 2}, from scratch. 2 rounds" in about_clients(document)
    assert "*As used*: after the round whose validation photos are recognised best and what" in about_clients(document)
    earlier = {**document, "pretrained": "on embedded letters of other people"}
    del earlier["keep"]
    assert "'num_heads': 2}, pretrained: on embedded letters of other people. 2 rounds" in about_clients(earlier)
    assert "*As used*: after the last round and what the method itself does before use;" in about_clients(earlier)


def test_prompts_for_each_group_are_trained_by_one_command(refocus, tmp_path):
    squares = photos(count=120)
    np.savez(tmp_path / "squares.npz", x=squares.pixels.permute(0, 2, 3, 1).numpy(), y=squares.label.numpy(),
             client=np.arange(120) % 3)  # fmt: skip
    (tmp_path / "small.toml").write_text(
        f"partition = 'natural'\n{SMALL_NETWORK}[recipe]\nfull.epochs = 8\nparts = {{ epochs = 8, head_epochs = 8 }}\n"
    )
    done = refocus("train", "prompt", tmp_path / "run", "--data", tmp_path / "squares.npz", "--seeds", "0", "--json",
                   "--config", tmp_path / "small.toml", "--checkpoint", small_checkpoint(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["name"] for row in document["rows"]] == ["local", "head", "singleset-vpt", "singleset-vpt-d"]
    assert (document["rounds"], document["data"]["unseen"]) == (1, 0)
    made = tmp_path / "run" / "seed-0" / "singleset-vpt-d-0.25" / "deliver"
    assert len([*(made / "clients").glob("*.safetensors")]) == 3
    assert load_checkpoint(made / "singleset-vpt-d.safetensors").required("encoder").weights["prompts"].shape == (
        2,
        5,
        16,
    )


SMALL_NETWORK = (
    "backbone = 'vit_tiny_patch16_224'\n"
    "arguments = { img_size = 16, patch_size = 8, embed_dim = 16, depth = 2, num_heads = 2 }\n"
)


def small_checkpoint(folder):
    path = folder / "vit.safetensors"
    about = dict(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=len(glyphs.CLASSES))
    save_file(timm.create_model("vit_tiny_patch16_224", **about).state_dict(), path)
    return path


@pytest.mark.parametrize("what", ["mnist-20-clients/mnist_dir0.1_20clients.npz", "omniglot-small"])
def test_clients_of_public_data_are_read_as_they_were_dealt(what, real_data):
    run_table = load_arrays(real_data / what) if what.endswith("npz") else omniglot(real_data / what)
    assert len(np.unique(run_table.client)) == 20
    pixels = run_table.read(str(run_table.photo[0]))
    assert pixels[:4] == b"\x89PNG"
    found = gather(run_table, run_table.client, replace_crop(16), 24, 0.0, 0)
    assert len(found.members) == 20
    if what.endswith("npz"):
        judged = {client.name: len(client.test) for client in found.members}
        assert sum(judged.values()) > 0


def test_an_array_file_with_objects_in_it_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}], dtype=object), y=np.zeros(1), client=np.zeros(1))
    with pytest.raises(DataError, match="is not a readable .npz"):
        load_arrays(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", x=np.zeros((1, 2, 2)))
    with pytest.raises(DataError, match="holds x; expected"):
        load_arrays(tmp_path / "y.npz")


@pytest.mark.parametrize("about", [{}, {"class_token": False, "global_pool": "avg"}, {"init_values": 0.1}])
@pytest.mark.parametrize("deep", [False, True])
def test_a_network_laid_out_for_a_delegate_computes_the_same(about, deep):
    prompted = PromptedViT(vit(**about), 3, deep)
    tokens, photo = torch.randn_like(prompted.prompts.tokens), torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(DelegatedViT(prompted)(photo, tokens), prompted(photo, tokens), atol=1e-5, rtol=1e-5)


def test_a_network_with_other_parts_is_not_laid_out():
    with pytest.raises(UsageError, match="has parts that are not laid out for XNNPACK"):
        DelegatedViT(PromptedViT(vit(qk_norm=True), 3))
