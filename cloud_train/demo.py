"""``refocus demo``: the whole path once, on the embedded glyphs, in a few minutes on a laptop without a GPU."""

from __future__ import annotations

from pathlib import Path

from cloud_train.data import glyphs
from cloud_train.evaluate import evaluate_run
from cloud_train.methods.iciia import IciiaConfig
from cloud_train.progress import say
from cloud_train.report import print_summary, write_report, write_results
from cloud_train.runs import DataConfig, Run, RunConfig, variant_name
from cloud_train.train_encoder import EncoderRecipe
from cloud_train.train_gate import GateRecipe
from cloud_train.train_iciia import Devices, IciiaRecipe

# Fewer people and a faster recipe than `refocus train iciia`: larger steps (momentum, 16 windows each), fewer epochs.
CLIENTS = {"train": 360, "validation": 30, "gate": 30, "test": 45}
ENCODER = EncoderRecipe(epochs=3)
RECIPES = {
    256: IciiaRecipe(learning_rate=0.2, momentum=0.9, windows_per_step=16, epochs=10),
    1: IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=16, epochs=4),
}
GATE = GateRecipe(windows=3000)
TARGETS_PER_CLIENT = 12


def run_demo(out: Path, clients: dict[str, int] | None = None) -> None:
    """Trains on glyphs, exports, replays unseen people through the bundle, and writes results.json and report.html.

    Args:
        out: the run's folder; a demo that was stopped goes on there.
        clients: writers per split.
    """
    clients = clients or CLIENTS
    run = Run(out, RunConfig(DataConfig(glyph_clients=clients), encoder=ENCODER))
    say(f"glyphs: {len(run.table)} photos of {len(glyphs.CLASSES)} letters by {sum(clients.values())} people")
    fabric = Devices(accelerator="cpu").launch()
    prepared = run.prepare(fabric)
    for partitions, recipe in RECIPES.items():
        iciia = IciiaConfig(width=prepared.backbone.width, layers=1, partitions=partitions)
        run.train_head(variant_name(iciia), iciia, recipe, prepared, fabric, GATE)
    results = evaluate_run(run, TARGETS_PER_CLIENT, command="refocus demo")
    write_results(results, out / "results.json")
    write_report(results, run.table.read, out / "report.html")
    print_summary(results)
    say(f"report:  {out / 'report.html'}\nresults: {out / 'results.json'}\nbundle:  {out / 'seed-0/bundles/iciia_t'}")
