"""What the tests of networks at large start from: a folder of photos."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def photos(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    test = tiny_run.table.of_split("test")
    for number, name in enumerate(test.photo[:40].tolist()):
        (folder / f"{number:02d}.png").write_bytes(test.read(name))
    return folder


@pytest.fixture(scope="session")
def federated_run(tmp_path_factory):
    """Four clients with squares of six brightnesses, in photos of 16 pixels, and an untrained vision transformer."""
    import numpy as np
    import timm
    import torch
    from safetensors.torch import save_file

    from refocus.cloud_train.federated.client import Recipe
    from refocus.cloud_train.federated.local_training import ClientRecipe
    from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun

    folder = tmp_path_factory.mktemp("federated")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 6, 200)
    pixels = (40 * label[:, None, None, None] + rng.integers(0, 9, (200, 16, 16, 3))).astype(np.uint8)
    np.savez(folder / "squares.npz", x=pixels, y=label, client=np.arange(200) % 4)
    about = dict(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=189, **about)
    save_file(network.state_dict(), folder / "vit.safetensors")
    parts = ClientRecipe(epochs=2, batch=16)
    config = FederatedConfig(
        source=str(folder / "squares.npz"), arguments=about, checkpoint=str(folder / "vit.safetensors"), unseen=0.0,
        recipe=Recipe(rounds=3, parts=parts), part_rates=(0.1,),
    )  # fmt: skip
    return FederatedRun(folder / "run", config)
