"""The bank of a TAPER checkpoint, as ``export`` takes it: the group ``refocus.banks``."""

from __future__ import annotations

from refocus.cloud_train.backbones.backbone import Encoder, classifier_name, create_backbone, preprocessing_of
from refocus.cloud_train.methods.taper.bank import Layout, layout_of
from refocus.edge.bundle import Column
from refocus.export.bank import BankSource
from refocus.export.program import Checkpoint, CheckpointError

_PREDICTOR = "predictor."


def taper_bank(checkpoint: Checkpoint) -> BankSource:
    """``taper``: the bases, the generic network they grew from, the mixer predictor and the descriptions.

    Raises:
        CheckpointError: its rows are not of the network that its card names.
    """
    config, weights = checkpoint.card.config, checkpoint.weights
    preprocessing = preprocessing_of(config)
    backbone = create_backbone(config["name"], config["classes"], preprocessing, **config["arguments"])
    layout = layout_of(backbone.network, config["blockwise"], config.get("frozen", 0))
    if weights["rows"].shape[1] != layout.size or weights["generic"].shape != (layout.size,):
        raise CheckpointError(
            f"{checkpoint.path}: rows {tuple(weights['rows'].shape)} and generic {tuple(weights['generic'].shape)} are"
            f" not of {config['name']}, which has {layout.size} numbers; train again"
        )
    backbone.network.load_state_dict(layout.split(weights["generic"]), strict=False)  # counters of batches stay
    return BankSource(
        network=backbone.network.eval(),
        encoder=Encoder,
        classifier=classifier_name(backbone.network),
        width=backbone.width,
        row=backbone.row,
        preprocessing=preprocessing,
        columns=columns_of(layout),
        generic=weights["generic"],
        rows=weights["rows"],
        words={
            **{
                name.removeprefix(_PREDICTOR): value
                for name, value in weights.items()
                if name.startswith(_PREDICTOR) and not name.endswith("num_batches_tracked")
            },
            "descriptions": weights["descriptions"],
        },
        domains=tuple(config["domains"]),
        text_encoder=config["text_encoder"],
        prompts=tuple(config["prompts"]),
        self_improvement=config.get("self_improvement", "networks"),
    )


def columns_of(layout: Layout) -> tuple[Column, ...]:
    """A layout in the words of the manifest."""
    return tuple(
        Column(name=slot.name, shape=slot.shape, start=slot.start, stop=slot.stop, mixer=slot.mixer)
        for slot in layout.slots
    )
