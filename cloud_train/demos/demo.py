"""``refocus demo``: the whole path once, on the embedded glyphs, in a few minutes on a laptop without a GPU."""

from __future__ import annotations

from pathlib import Path

from refocus.cloud_train.backbones.pretrain import EncoderRecipe
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.evaluate.bank_replay import replay_bank
from refocus.cloud_train.evaluate.heads import evaluate_run
from refocus.cloud_train.evaluate.report import print_study, print_summary, write_report
from refocus.cloud_train.evaluate.self_improvement import study_improvement
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
from refocus.cloud_train.methods.taper.train import TaperRecipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig, variant_name
from refocus.cloud_train.runs.taper import TaperConfig, TaperRun
from refocus.cloud_train.tracking import tracked

# Fewer people and a faster recipe than `refocus train iciia`: larger steps (momentum, 16 windows each), fewer epochs.
CLIENTS = {"train": 360, "validation": 30, "gate": 30, "test": 45}
ENCODER = EncoderRecipe(epochs=3)
RECIPE = IciiaRecipe(learning_rate=0.2, momentum=0.9, windows_per_step=16, epochs=10)
GATE = GateRecipe(windows=3000)
TARGETS_PER_CLIENT = 12
# A bank of very small networks that look at letters of eight pixels: what there is to gain by a network of one's own
# shows where networks are too small for everything.
BANK = TaperConfig(
    glyph_clients={"train": 400, "validation": 30, "test": 60},
    bases=12,
    shards="domains",
    recipe=TaperRecipe(epochs=(12, 8, 2)),
)
TASKS, OWNERS = 60, 20  # judged on the bank; whose photos, unlabelled, find their task


def run_demo(out: Path) -> None:
    """Trains on glyphs, exports, replays unseen people through the bundles, and writes results.json and report.html.

    Args:
        out: the run's folder; a demo that was stopped goes on there.
    """
    run = Run(out, RunConfig(DataConfig(glyph_clients=CLIENTS), encoder=ENCODER))
    say(f"glyphs: {len(run.table)} photos of {len(glyphs.CLASSES)} letters by {sum(CLIENTS.values())} people")
    fabric = Devices(accelerator="cpu").launch()
    with tracked("", out, {}):
        prepared = run.prepare(fabric)
        iciia = IciiaConfig(width=prepared.backbone.width, layers=1)
        run.train_head(variant_name(iciia), iciia, RECIPE, prepared, fabric, GATE)
    results = evaluate_run(run, TARGETS_PER_CLIENT, command="refocus demo")
    write_results(results, out / "results.json")
    print_summary(results)
    bank = TaperRun(out / "taper", BANK)
    with tracked("", out / "taper", {}):
        studies = [replay_bank(bank, [0], TASKS, "refocus demo"), study_improvement(bank, [0], "refocus demo", OWNERS)]
    for study in studies:
        write_results(study, out / "taper" / "studies" / f"{study['study']}.json")
        print_study(study)
    write_report(results, run.table.read, out / "report.html", studies)
    say(
        f"report:  {out / 'report.html'}\nresults: {out / 'results.json'}\nbundle:  {out / 'seed-0/bundles/iciia_t'}\n"
        f"bank:    {out / 'taper/seed-0/bank'}"
    )
