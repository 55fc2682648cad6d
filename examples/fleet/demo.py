"""Demonstration of retrainings and releases for a fleet of devices.

Two releases reach all devices, the gates stop a third candidate, and the fleet stops a fourth. Everything except the
people is real: the pipeline trains, evaluates, exports and signs; the repository is served over loopback HTTP; every
device is a separate process that recognises its owner's letters throughout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from examples.fleet.fleet import Fleet, LoopbackServer, Owner, Pace
from examples.fleet.letters import Collection, write_collection, writers
from examples.fleet.report import write_fleet_report
from examples.fleet.rollout import roll_out
from examples.fleet.story import ReleaseStory, Story, story_of
from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.backbones.pretrain import EncoderRecipe, train_encoder
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.errors import ReleaseError, UsageError
from refocus.cloud_train.pipeline.run import Outcome, run_pipeline
from refocus.cloud_train.pipeline.state import read_state
from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import StopRule
from refocus.export.program import Card, save_checkpoint

CLASS = "phone"
EVERYWHERE, SOUTH = ("latin", "greek", "cyrillic"), ("latin", "greek")
# A small residual network, which learns the letters in half a minute.
BACKBONE = "resnet10t"
ARGUMENTS: dict[str, Any] = {"channels": [32, 64, 128, 256], "stem_width": 16}
ENCODER = EncoderRecipe(epochs=8)
# A fleet of twenty gives little evidence: one device is 5 % of it. So the rule has other numbers than for a real fleet
# (2 % of 50 devices or more, 97 % sure): it stops a release if it is 80 % sure that more than a fifth did not keep it.
# Shares of few devices are coarse: 0.6 stops 13 % of the releases that exactly a fifth do not keep.
RULE = StopRule(returned=0.2, devices=7, confidence=1.28, false_stops=0.6)
FIRST, THEN = 40, (70.0, 100.0)

# Gate people have 32 photos each and one photo is 3 %: with less than 10 %, chance would stop most releases.
SETTINGS = """\
name = "letters"

[data]
source = "photos/{name}"

[model]
backbone = "resnet10t"
checkpoint = "encoder.safetensors"

[model.arguments]
channels = [32, 64, 128, 256]
stem_width = 16

[model.arguments.pretrained_cfg_overlay]  # what timm is told of this encoder's input
input_size = [3, 32, 32]
crop_pct = 1.0
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
interpolation = "bilinear"

[block]  # on so narrow a feature, ICIIA-B; its classifier begins as the plain one and needs few people
layers = 1
partitions = 1
classifier = "residual"

[recipe]
learning_rate = 0.1
momentum = 0.9
windows_per_step = 8
epochs = 8

[gate]
windows = 2000

[limits]
noticeable = 0.1
below_backbone = 0.15

[release]
repository = "repository"
keys = "keys"
device_class = "{device_class}"
percent = {percent}
"""


@dataclass(frozen=True)
class Scale:
    """Size of the demonstration.

    Attributes:
        foundation: number of people whose photos train the encoder only.
        train: number of people whose photos train the head of each season: the first people in spring, these and more
            in summer, a few others in autumn, and different people in winter. A head trained on thirty people is worse
            than none, and the gates stop it.
        others: number of people by further split; the same people in spring, summer and autumn.
        photos: number of photos per person.
        owners: number of device owners by script.
        pace: seconds between photos and between update checks.
    """

    foundation: int = 120
    train: tuple[int, int, int, int] = (80, 200, 30, 160)
    others: dict[str, int] = field(default_factory=lambda: {"validation": 6, "gate": 24, "test": 24})
    photos: int = 32
    owners: dict[str, int] = field(default_factory=lambda: {"cyrillic": 10, "latin": 6, "greek": 4})
    pace: Pace = field(default_factory=Pace)


def run_demo(out: Path, scale: Scale | None = None) -> Story:
    """Run the demonstration and write ``report.html``.

    Args:
        out: output folder; must be empty or new.
        scale: size of the demonstration; default: the full size.

    Raises:
        UsageError: the folder is not empty.
        ReleaseError: the gates stopped the release of spring or summer.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty; remove it or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    return Demo(out.resolve(), scale or Scale()).run()


class Demo:
    """Demonstration in a folder."""

    def __init__(self, out: Path, scale: Scale) -> None:
        self.out, self.scale, self.began = out, scale, time.time()
        self.repository = Repository.create(out / "repository", KeyRing(out / "keys"), [CLASS])
        self.candidates: list[ReleaseStory] = []

    def run(self) -> Story:
        """Run the four retrainings and the fleet; return the story."""
        spring, summer, autumn, winter = collections(self.scale)
        self._say("Before anything: an encoder, taught once by people who take no further part")
        self._teach_encoder()
        server = LoopbackServer(self.out / "repository")
        try:
            self._say(f"\nSpring. {self.scale.train[0]} people have sent labelled photos: the first head")
            self._needed(self._retrain(spring, "few people", 100))
            self._say(f"   {sum(self.scale.owners.values())} devices are switched on, and take it")
            fleet = Fleet(
                self.out / "devices", self._owners(), server, self.repository.first_root, CLASS, self.scale.pace
            )
            with fleet:
                self._roll_out(fleet, server, ())
                self._say(f"\nSummer. They are {self.scale.train[1]} now: the head is trained again")
                self._needed(self._retrain(summer, "the same people and many more", FIRST))
                self._roll_out(fleet, server, THEN)
                self._say("\nAutumn. A batch of few photos; half of its labels were mixed up when they were entered")
                if self._retrain(autumn, "few people, half of the labels mixed up", FIRST).passed:
                    self._roll_out(fleet, server, THEN)
                self._say(
                    "\nWinter. A batch from the south: who teaches in it writes no Cyrillic, nor who judges."
                    "\n   The gates cannot know that half of the devices' owners do"
                )
                if self._retrain(winter, "people who write no Cyrillic letters, judged by such people", FIRST).passed:
                    self._roll_out(fleet, server, THEN)
                time.sleep(5 * self.scale.pace.photo_s)  # the devices check for updates once more
        finally:
            server.close()
        story = story_of(fleet, self.repository.channel(CLASS), self.candidates, self.began, time.time())
        self._say(f"\n{story.summary()}\nreport: {write_fleet_report(story, self.out)}")
        return story

    # ---- parts

    def _teach_encoder(self) -> None:
        people = {"train": writers(EVERYWHERE, self.scale.foundation, 1000)}
        table = load_photos(write_collection(self.out / "photos", Collection("foundation", people, self.scale.photos)))
        network = train_encoder(table, ENCODER, BACKBONE, **ARGUMENTS).network
        card = Card(builder="timm_encoder", config={}, labels=table.classes)
        save_checkpoint(self.out / "encoder.safetensors", network.state_dict(), card)

    def _owners(self) -> list[Owner]:
        """Return the owners of devices.

        One owner in five labels no photos, and another one in five sends no counts.
        """
        people = [person for script, count in self.scale.owners.items() for person in writers([script], count, 70_000)]
        return [Owner(person, labels=number % 5 != 1, tells=number % 5 != 3) for number, person in enumerate(people)]

    def _retrain(self, collection: Collection, what: str, percent: int) -> Outcome:
        write_collection(self.out / "photos", collection)
        config = self.out / f"{collection.name}.toml"
        config.write_text(SETTINGS.format(name=collection.name, device_class=CLASS, percent=percent), encoding="utf-8")
        began = time.time()
        outcome = run_pipeline(config, self.out / "pipeline")
        figures, page = evaluated(outcome.work), str(outcome.report.relative_to(self.out))
        self.candidates.append(
            ReleaseStory(collection.name, what, time.time() - began, outcome.release, figures, [*outcome.reasons], page)
        )
        self._say(f"   {figures}")
        for reason in outcome.reasons:
            self._say(f"   {reason}")
        passed = f"passed: release {outcome.release}, for {percent} % of the devices"
        self._say(f"   {passed if outcome.passed else 'stopped by the gates: no release'}; {outcome.report}")
        return outcome

    def _needed(self, outcome: Outcome) -> None:
        if not outcome.passed:
            raise ReleaseError(f"the gates stopped what should go out: {outcome.reasons[0]}; see {outcome.report}")

    def _roll_out(self, fleet: Fleet, server: LoopbackServer, stages: Sequence[float]) -> None:
        last = self.candidates[-1]
        assert last.release is not None  # noqa: S101  # it passed
        done = roll_out(self.repository, CLASS, last.release, fleet, server, stages, RULE, say=self._say)
        asked = [f"{d.percent:g} % to {d.asked:g} %: {d.verdict.verdict}: {d.verdict.why}" for d in done.decisions]
        self.candidates[-1] = msgspec.structs.replace(last, decisions=asked)
        ran = sum(r.active is not None and r.active.number == last.release for r in fleet.records().values())
        withdrawn = f"withdrawn: {done.stopped}; " if done.stopped else ""
        self._say(f"   {withdrawn}{ran} of {len(fleet.owners)} devices run it")

    def _say(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def evaluated(work: Path) -> str:
    """Return a sentence with the accuracy of a retraining.

    It is the mean and the worst tenth of the evaluation people.
    """
    found = read_state(work, "evaluate")
    if "candidate" not in found:
        return "not judged: it does not compute what PyTorch computes"
    now, before = np.array(found["candidate"]), np.array(found["current"])
    means = f"right answers {now.mean():.0%} ({found['against']}: {before.mean():.0%})"
    return f"{means}, the worst served tenth {worst_tenth(now):.0%} ({worst_tenth(before):.0%})"


def collections(scale: Scale) -> tuple[Collection, Collection, Collection, Collection]:
    """Return the collections of photos of the four seasons.

    In spring, summer and autumn the same people evaluate; none of them is in the training photos of a release.
    """
    judges = _people(EVERYWHERE, scale.others, 10_000)
    taught = writers(EVERYWHERE, scale.train[1], 20_000)
    spring, summer = ({"train": taught[:count], **judges} for count in scale.train[:2])
    autumn = {"train": writers(EVERYWHERE, scale.train[2], 30_000), **judges}
    winter = _people(SOUTH, {"train": scale.train[3], **scale.others}, 40_000)
    return (
        Collection("spring", spring, scale.photos),
        Collection("summer", summer, scale.photos),
        Collection("autumn", autumn, scale.photos, wrong_labels=0.5),
        Collection("winter", winter, scale.photos),
    )


def _people(scripts: Sequence[str], sizes: dict[str, int], first: int) -> dict[str, list[int]]:
    """Return different people for each split, of the given numbers."""
    everybody = iter(writers(scripts, sum(sizes.values()), first))
    return {split: [next(everybody) for _ in range(size)] for split, size in sizes.items()}
