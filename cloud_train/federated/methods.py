"""Every method as a declaration: what is inserted, which parts travel, which stay, and how a client trains.

All else is one loop. What is neither shared nor a client's own is frozen: the pretrained body under prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated import local_training
from refocus.cloud_train.federated.local_training import Loss, Update
from refocus.cloud_train.federated.parameters import (
    Group,
    attention,
    body,
    everything,
    head,
    mlps,
    norms,
    patches,
    peft_modules,
    personal_head,
    positions,
)
from refocus.cloud_train.methods.peft.adapters import insert_adapters
from refocus.cloud_train.methods.peft.fedclip_adapter import AttAI, contrastive_loss
from refocus.cloud_train.methods.peft.prefixes import insert_prefixes
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.cloud_train.settings import Count
from refocus.edge.registry import Registry


@dataclass(frozen=True)
class PeftSizes:
    """Sizes of what is inserted.

    Attributes:
        prompts: K.
        inner: width inside an adapter, and of a parallel adapter.
        scale: s of FedPerfix; its saved settings have 1.5.
    """

    prompts: Count = 10
    inner: Count = 32
    scale: float = 1.5


Carrier = Literal["none", "inputs", "weights", "whole"]
Insert = Callable[[Any, PeftSizes], nn.Module]


def _prompts(network: Any, sizes: PeftSizes) -> nn.Module:
    return PromptedViT(network, sizes.prompts)


def _deep_prompts(network: Any, sizes: PeftSizes) -> nn.Module:
    return PromptedViT(network, max(1, sizes.prompts // len(network.blocks)), deep=True)


def _prefixes(form: str, source: str, zero: bool = False) -> Insert:
    def insert(network: Any, sizes: PeftSizes) -> nn.Module:
        return insert_prefixes(network, form, source, sizes.inner, sizes.scale, zero)

    return insert


def _attai(tower: Any, sizes: PeftSizes) -> nn.Module:
    return nn.Sequential(tower, AttAI(tower.num_classes))


def _adapters(network: Any, sizes: PeftSizes) -> nn.Module:
    return insert_adapters(network, sizes.inner)


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
        text_adapter: a second AttAI, over the sentences of the classes.
        loss: of logits (B, C) and labels (B,).
        carrier: how what is a client's own reaches its device (:mod:`refocus.edge.bundle.personal_weights`); "none":
            nothing is, or the network is everybody's.
    """

    about: str
    shared: tuple[Group, ...] = ()
    own: tuple[Group, ...] = ()
    insert: Insert | None = None
    update: Update = local_training.together
    before_use: Update = local_training.nothing
    server: str = "mean"
    two_heads: bool = False
    tower: bool = False
    text_adapter: bool = False
    loss: Loss = functional.cross_entropy
    carrier: Carrier = "inputs"

    @property
    def full(self) -> bool:
        """Whether the body itself is trained."""
        return bool({everything, body} & {*self.shared, *self.own})

    @property
    def on_features(self) -> bool:
        """Whether nothing in front of the features is trained, so that the encoder sees every photo once."""
        return self.insert in (None, _attai) and {*self.shared, *self.own} <= {head, personal_head, peft_modules}


_one_for_all = partial(Method, shared=(everything,))
_own_classifier = partial(Method, own=(head,))
_own_inside = partial(_one_for_all, own=(peft_modules, head), carrier="weights")
_own_prompts = partial(Method, own=(peft_modules, head))
_prompts_from_server = partial(Method, shared=(peft_modules,), own=(head,), insert=_prompts)
_tower = partial(Method, tower=True)
_own_groups = partial(_one_for_all, carrier="weights")
_whole_tower = partial(_tower, shared=(body,), carrier="none")

GROUP = "refocus.methods"  # entry points of other packages: a name, and a Method
_OWN: dict[str, Method] = {
    "local": Method("each client alone, the whole network", own=(everything,), carrier="whole"),
    "fedavg": _one_for_all("one network for all", carrier="none"),
    "fedprox": _one_for_all("one network, kept near what was received", update=local_training.proximal, carrier="none"),
    "fedrep": _own_classifier("own classifier, trained first", shared=(body,), update=local_training.head_first),
    "fedbabu": _own_classifier(
        "body alone, classifier tuned before use",
        shared=(body,),
        update=local_training.shared_alone,
        before_use=local_training.own_alone,
    ),
    "fedbn": _one_for_all("own norms", own=(norms,), carrier="weights"),
    "fedrod": _one_for_all(
        "a generic and an own classifier", own=(personal_head,), update=local_training.two_heads, two_heads=True
    ),
    "apfl": _one_for_all(
        "a learned mixture with a network of one's own",
        update=local_training.interpolated,
        before_use=local_training.interpolate,
        carrier="whole",
    ),
    "per-fedavg": _one_for_all(
        "a start that one epoch makes one's own",
        update=local_training.meta,
        before_use=local_training.one_epoch,
        carrier="whole",
    ),
    "vanilla-attention": _one_for_all("own self-attention and classifier", own=(attention, head), carrier="weights"),
    "prompts": _one_for_all("own prompts and classifier", own=(peft_modules, head), insert=_prompts),
    "adapters": _own_inside("own adapters and classifier", insert=_adapters),
    "prefix-zero": _own_inside(
        "own prefixes from one matrix, from zero", insert=_prefixes("added", "linear", zero=True)
    ),
    "prefix-random": _own_inside("own prefixes from one matrix", insert=_prefixes("added", "linear")),
    "fedperfix": _own_inside("own prefixes from parallel adapters, added", insert=_prefixes("added", "adapter")),
    "fedperfix-concatenated": _own_inside("the same, concatenated", insert=_prefixes("concatenated", "adapter")),
    "head": _own_classifier("each client alone, its classifier on the frozen body"),
    "singleset-vpt": _own_prompts("each client alone, prompts and classifier", insert=_prompts),
    "singleset-vpt-d": _own_prompts("the same with deep prompts", insert=_deep_prompts),
    "fedvpt": _prompts_from_server("one set of prompts, own classifier"),
    "fedvpt-d": _prompts_from_server("one set of deep prompts, own classifier", insert=_deep_prompts),
    "pfedpg": _prompts_from_server("prompts generated for each client, own classifier", server="attention"),
    "pfedpg-mlp": _prompts_from_server("the same from a perceptron", server="mlp"),
    "zero-shot": _tower("an image tower and sentences, nothing trained", update=local_training.nothing, carrier="none"),
    "fedclip": _tower("attention over the tower's features", shared=(peft_modules,), insert=_attai),
    "fedclip-published": _tower(
        "the same with the published loss", shared=(peft_modules,), insert=_attai, loss=contrastive_loss
    ),
    "fedavg-clip": _whole_tower("the whole tower"),
    "fedprox-clip": _whole_tower("the whole tower, kept near", update=local_training.proximal),
    "pfedpg-adain": _prompts_from_server("the same by statistics", server="adain"),
    "fedperfix-zero": _own_inside(
        "own prefixes from parallel adapters that start at zero", insert=_prefixes("added", "adapter", zero=True)
    ),
    "fedclip-text": _tower(
        "attention over the features of the tower and of the sentences",
        shared=(peft_modules,),
        insert=_attai,
        text_adapter=True,
        carrier="none",
    ),
    "fedclip-full": _whole_tower("attention over the tower's features, and the tower", insert=_attai),
    "own-head": _own_groups("own classifier, trained with the rest", own=(head,), carrier="inputs"),
    "own-patch": _own_groups("own patch embedding", own=(patches,)),
    "own-position": _own_groups("own position embedding", own=(positions,)),
    "own-attention": _own_groups("own self-attention", own=(attention,)),
    "own-mlp": _own_groups("own feed-forward parts", own=(mlps,)),
    "own-patch-head": _own_groups("own patch embedding and classifier", own=(patches, head)),
    "own-position-head": _own_groups("own position embedding and classifier", own=(positions, head)),
    "own-norm-head": _own_groups("own norms and classifier", own=(norms, head)),
    "own-mlp-head": _own_groups("own feed-forward parts and classifier", own=(mlps, head)),
}
METHODS: Registry[Method] = Registry(_OWN, GROUP, lambda entry: entry.load())
# As people read them; by their names where these are what the papers say.
TITLES = {
    "local": "each client alone",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedrod": "FedRoD",
    "apfl": "APFL",
    "per-fedavg": "Per-FedAvg",
    "vanilla-attention": "own attention and classifier",
    "prompts": "own prompts",
    "adapters": "own adapters",
    "prefix-zero": "Prefix-Z",
    "prefix-random": "Prefix-R",
    "fedperfix": "FedPerfix",
    "fedperfix-concatenated": "FedPerfix, concatenated",
    "fedperfix-zero": "FedPerfix from zero",
    "head": "classifier alone",
    "singleset-vpt": "each client's prompts alone",
    "singleset-vpt-d": "each client's deep prompts alone",
    "fedvpt": "FedVPT",
    "fedvpt-d": "FedVPT-D",
    "pfedpg": "pFedPG",
    "pfedpg-mlp": "pFedPG, perceptron",
    "pfedpg-adain": "pFedPG, AdaIN",
    "zero-shot": "zero-shot tower",
    "fedclip": "FedCLIP",
    "fedclip-published": "FedCLIP, published loss",
    "fedclip-text": "FedCLIP with a text adapter",
    "fedclip-full": "FedCLIP and the tower",
    "fedavg-clip": "FedAvg of the tower",
    "fedprox-clip": "FedProx of the tower",
    "own-head": "own classifier",
    "own-patch": "own patch embedding",
    "own-position": "own position embedding",
    "own-attention": "own attention",
    "own-mlp": "own MLP",
    "own-patch-head": "own patch embedding and classifier",
    "own-position-head": "own position embedding and classifier",
    "own-norm-head": "own norms and classifier",
    "own-mlp-head": "own MLP and classifier",
}


def title_of(method: str) -> str:
    """Readable title of a federated method; of methods of other packages their own name."""
    return TITLES.get(method, method)


ALWAYS = ("local", "fedavg")  # in every table: what personalisation has to beat


def find_method(name: str) -> Method:
    """The method of that name.

    Raises:
        UsageError: there is none; the nearest ones are named.
    """
    if name not in METHODS:
        near = get_close_matches(name, METHODS, 3) or [*METHODS]
        raise UsageError(f"methods: {name}: there is none of that name; did you mean {', '.join(near)}?")
    return METHODS[name]
