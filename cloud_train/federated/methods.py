"""Every method as a declaration: what is inserted, which parts travel, which stay, and how a client trains.

All else is one loop. What is neither shared nor a client's own is frozen: the pretrained body under prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from torch import nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated import local_training as updates
from refocus.cloud_train.federated.parameters import (
    Group,
    attention,
    body,
    everything,
    head,
    norms,
    personal_head,
    plugins,
)
from refocus.cloud_train.methods.peft.adapters import insert_adapters
from refocus.cloud_train.methods.peft.fedclip_adapter import AttAI, contrastive_loss
from refocus.cloud_train.methods.peft.prefixes import insert_prefixes
from refocus.cloud_train.methods.peft.prompts import PromptedViT


@dataclass(frozen=True)
class PluginSizes:
    """Sizes of what is inserted.

    Attributes:
        prompts: K.
        inner: width inside an adapter, and of a parallel adapter.
        scale: s of FedPerfix; its saved settings have 1.5.
    """

    prompts: int = 10
    inner: int = 32
    scale: float = 1.5


Carrier = Literal["none", "inputs", "weights", "whole"]
Insert = Callable[[Any, PluginSizes], nn.Module]


def _prompts(network: Any, sizes: PluginSizes) -> nn.Module:
    return PromptedViT(network, sizes.prompts)


def _deep_prompts(network: Any, sizes: PluginSizes) -> nn.Module:
    return PromptedViT(network, max(1, sizes.prompts // len(network.blocks)), deep=True)


def _prefixes(form: str, source: str, zero: bool = False) -> Insert:
    def insert(network: Any, sizes: PluginSizes) -> nn.Module:
        found: nn.Module = insert_prefixes(network, form, source, sizes.inner, sizes.scale, zero)
        return found

    return insert


def _attai(tower: Any, sizes: PluginSizes) -> nn.Module:
    return nn.Sequential(tower, AttAI(tower.num_classes))


def _adapters(network: Any, sizes: PluginSizes) -> nn.Module:
    found: nn.Module = insert_adapters(network, sizes.inner)
    return found


@dataclass(frozen=True)
class Method:
    """One way to train together.

    Attributes:
        about: what it is, in a few words, for tables.
        shared: groups whose tensors travel and are put together by the server.
        own: groups that each client trains and keeps; what is in both is its own.
        insert: into the body, before anything is trained.
        update: how a client trains in a round.
        before_use: what a client does with what it received before it is judged or deployed.
        server: "mean", weighted by photos; or a prompt generator: "attention", "mlp", "adain".
        two_heads: a second classifier beside the shared one.
        tower: the body is an image tower and the classifier the sentences of the classes, as in CLIP.
        loss: of logits (B, C) and labels (B,).
        carrier: how what is a client's own reaches its device (:mod:`refocus.edge.bundle.personal_weights`); "none":
            nothing is, or
            the network is everybody's.
    """

    about: str
    shared: tuple[Group, ...] = ()
    own: tuple[Group, ...] = ()
    insert: Insert | None = None
    update: updates.Update = updates.together
    before_use: updates.Update = updates.nothing
    server: str = "mean"
    two_heads: bool = False
    tower: bool = False
    loss: updates.Loss = functional.cross_entropy
    carrier: Carrier = "inputs"

    @property
    def full(self) -> bool:
        """Whether the body itself is trained."""
        return bool({everything, body} & {*self.shared, *self.own})


METHODS: dict[str, Method] = {
    "local": Method("each client alone, the whole network", own=(everything,), carrier="whole"),
    "fedavg": Method("one network for all", shared=(everything,), carrier="none"),
    "fedprox": Method(
        "one network, kept near what was received", shared=(everything,), update=updates.proximal, carrier="none"
    ),
    "fedrep": Method("own classifier, trained first", shared=(body,), own=(head,), update=updates.head_first),
    "fedbabu": Method(
        "body alone, classifier tuned before use",
        shared=(body,),
        own=(head,),
        update=updates.shared_alone,
        before_use=updates.own_alone,
    ),
    "fedbn": Method("own norms", shared=(everything,), own=(norms,), carrier="weights"),
    "fedrod": Method(
        "a generic and an own classifier",
        shared=(everything,),
        own=(personal_head,),
        update=updates.two_heads,
        two_heads=True,
    ),
    "apfl": Method(
        "a learned mixture with a network of one's own",
        shared=(everything,),
        update=updates.interpolated,
        before_use=updates.interpolate,
        carrier="whole",
    ),
    "per-fedavg": Method(
        "a start that one epoch makes one's own",
        shared=(everything,),
        update=updates.meta,
        before_use=updates.one_epoch,
        carrier="whole",
    ),
    "vanilla-attention": Method(
        "own self-attention and classifier", shared=(everything,), own=(attention, head), carrier="weights"
    ),
    "prompts": Method("own prompts and classifier", shared=(everything,), own=(plugins, head), insert=_prompts),
    "adapters": Method(
        "own adapters and classifier", shared=(everything,), own=(plugins, head), insert=_adapters, carrier="weights"
    ),
    "prefix-zero": Method(
        "own prefixes from one matrix, from zero",
        shared=(everything,),
        own=(plugins, head),
        insert=_prefixes("added", "linear", zero=True),
        carrier="weights",
    ),
    "prefix-random": Method(
        "own prefixes from one matrix",
        shared=(everything,),
        own=(plugins, head),
        insert=_prefixes("added", "linear"),
        carrier="weights",
    ),
    "fedperfix": Method(
        "own prefixes from parallel adapters, added",
        shared=(everything,),
        own=(plugins, head),
        insert=_prefixes("added", "adapter"),
        carrier="weights",
    ),
    "fedperfix-concatenated": Method(
        "the same, concatenated",
        shared=(everything,),
        own=(plugins, head),
        insert=_prefixes("concatenated", "adapter"),
        carrier="weights",
    ),
    "head": Method("each client alone, its classifier on the frozen body", own=(head,)),
    "singleset-vpt": Method("each client alone, prompts and classifier", own=(plugins, head), insert=_prompts),
    "singleset-vpt-d": Method("the same with deep prompts", own=(plugins, head), insert=_deep_prompts),
    "fedvpt": Method("one set of prompts, own classifier", shared=(plugins,), own=(head,), insert=_prompts),
    "fedvpt-d": Method("one set of deep prompts, own classifier", shared=(plugins,), own=(head,), insert=_deep_prompts),
    "pfedpg": Method(
        "prompts generated for each client, own classifier",
        shared=(plugins,),
        own=(head,),
        insert=_prompts,
        server="attention",
    ),
    "pfedpg-mlp": Method("the same from a perceptron", shared=(plugins,), own=(head,), insert=_prompts, server="mlp"),
    "zero-shot": Method(
        "an image tower and sentences, nothing trained", update=updates.nothing, tower=True, carrier="none"
    ),
    "fedclip": Method("attention over the tower's features", shared=(plugins,), insert=_attai, tower=True),
    "fedclip-published": Method(
        "the same with the published loss", shared=(plugins,), insert=_attai, tower=True, loss=contrastive_loss
    ),
    "fedavg-clip": Method("the whole tower", shared=(body,), tower=True, carrier="none"),
    "fedprox-clip": Method(
        "the whole tower, kept near", shared=(body,), update=updates.proximal, tower=True, carrier="none"
    ),
    "pfedpg-adain": Method("the same by statistics", shared=(plugins,), own=(head,), insert=_prompts, server="adain"),
}
ALWAYS = ("local", "fedavg")  # in every table: what personalisation has to beat


def find_method(name: str) -> Method:
    """The method of that name.

    Raises:
        UsageError: there is none; the nearest ones are named.
    """
    if name not in METHODS:
        near = get_close_matches(name, METHODS, 3) or [*METHODS]
        raise UsageError(f"--methods {name}: there is none of that name; did you mean {', '.join(near)}?")
    return METHODS[name]
