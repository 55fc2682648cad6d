"""Recognise an album with the default bundle, as ``make demo`` does.

    python examples/demo.py --out demo [--photos FOLDER]

Without ``--photos`` the album has 84 views (crops, other light, blur) of photographs without copyright, as an owner of a
cat, a coffee cup, a tripod and a model rocket would take them, among pictures of people and of a wall, which the network
has no label for. Their truth is known, so the demo counts correct answers. The views are an illustration; results on
photos of real data sets are in docs/results.md. The script needs the device installation alone.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

PHOTOGRAPHS = Path(__file__).parents[1] / "bundles" / "imagenet-lite0" / "photos"
# Labels that are correct for a subject; none: the network has no label for it.
TRUTH: dict[str, tuple[str, ...]] = {
    "chelsea": ("tabby, tabby cat", "tiger cat", "Egyptian cat"),
    "coffee": ("espresso", "cup", "coffee mug"),
    "camera": ("tripod",),
    "rocket": ("missile", "projectile, missile"),
    "astronaut": (),
    "hopper": (),
    "brick": (),
}
KNOWN, UNKNOWN = 15, 8  # views of a subject
SIDE, MARGIN = 224, 12  # of a photo in the picture, in pixels


def write_views(folder: Path) -> None:
    """Write the views of all subjects in a random order.

    Args:
        folder: gets files such as ``007-coffee.jpg``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    subjects = [name for name, labels in TRUTH.items() for _ in range(KNOWN if labels else UNKNOWN)]
    for number, subject in enumerate(rng.permutation(subjects).tolist()):
        photographs = sorted(PHOTOGRAPHS.glob(f"*-{subject}*.jpg"))
        with Image.open(photographs[rng.integers(len(photographs))]) as photograph:
            view(photograph.convert("RGB"), rng).save(folder / f"{number:03d}-{subject}.jpg", quality=90)


def view(photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a square part of a photograph in another light and focus."""
    side = int(min(photograph.size) * rng.uniform(0.4, 1))
    left, top = (rng.integers(length - side + 1) for length in photograph.size)
    part = photograph.crop((left, top, left + side, top + side))
    part = ImageOps.mirror(part) if rng.random() < 0.5 else part
    part = ImageEnhance.Brightness(part).enhance(rng.uniform(0.35, 1.3))
    return part.filter(ImageFilter.GaussianBlur(rng.uniform(0, 2.5)))


def refocus(*words: str) -> None:
    """Print and run a command of Refocus.

    Its status is 3 if some photos have no answer.
    """
    print("\n$ refocus", shlex.join(words), flush=True)
    done = subprocess.run([sys.executable, "-m", "refocus", *words], check=False)  # noqa: S603
    if done.returncode not in (0, 3):
        sys.exit(done.returncode)


def label_of(row: dict[str, Any]) -> str:
    """Return the label of a photo."""
    return str(row["answer"][0]["label"])


def label_alone(row: dict[str, Any]) -> str:
    """Return the label of the photo without the others."""
    return str(row["alone"][0][0])


def outcome(row: dict[str, Any]) -> str:
    """Return what the earlier photos changed.

    Returns:
        "corrected", "made wrong", "correct", "wrong" or "unknown".
    """
    labels = TRUTH[Path(row["file"]).stem.split("-", 1)[1]]
    if not labels:
        return "unknown"
    alone, answer = label_alone(row) in labels, label_of(row) in labels
    return {(False, True): "corrected", (True, False): "made wrong"}.get(
        (alone, answer), "correct" if answer else "wrong"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the counts of correct answers and of marked photos."""
    found = [outcome(row) for row in rows]
    known, unknown = len(found) - found.count("unknown"), found.count("unknown")
    alone = found.count("correct") + found.count("made wrong")
    guesses = [what for row, what in zip(rows, found, strict=True) if not row["known"]]
    return (
        f"{known} photos of the owner's things: {alone} correct from the photo alone,"
        f" {alone + found.count('corrected') - found.count('made wrong')} with the earlier photos"
        f" ({found.count('corrected')} corrected, {found.count('made wrong')} made wrong)\n"
        f"marked as a guess: {guesses.count('unknown')} of {unknown} photos of things without a label,"
        f" {len(guesses) - guesses.count('unknown')} of the {known} others"
    )


def draw(rows: list[dict[str, Any]], folder: Path, out: Path) -> None:
    """Draw six photos with their answers, alone and with the earlier photos.

    Three corrected ones, a wrong one (made wrong, if there is such a one), a correct one, and a marked one that has no
    label.
    """
    of = {what: [row for row in rows if outcome(row) == what] for what in ("corrected", "correct", "unknown")}
    wrong = sorted((row for row in rows if outcome(row) in ("made wrong", "wrong")), key=outcome)
    sure = [row for row in of["correct"] if row["known"] and label_of(row) == label_alone(row)]
    unknown = [row for row in of["unknown"] if not row["known"]]
    chosen = [*of["corrected"][:3], *wrong[:1], *sure[:1], *unknown[:1], *sure[1:]][:6]
    colours = {"corrected": "#15803d", "correct": "#15803d", "unknown": "#6b7280"}
    picture = Image.new("RGB", (3 * (SIDE + MARGIN) + MARGIN, 2 * (SIDE + 64 + MARGIN) + MARGIN), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(15)
    for place, row in enumerate(chosen):
        x, y = MARGIN + place % 3 * (SIDE + MARGIN), MARGIN + place // 3 * (SIDE + 64 + MARGIN)
        with Image.open(folder / Path(row["file"]).name) as photo:
            picture.paste(photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (x, y))
        name = label_of(row).split(",")[0] + ("" if row["known"] else " (a guess)")
        pen.text((x, y + SIDE + 6), f"alone: {label_alone(row).split(',')[0]}", "#6b7280", font)
        pen.text((x, y + SIDE + 28), name, colours.get(outcome(row), "#b91c1c"), font)
    picture.save(out)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--photos", type=Path, help="folder of photos of your own; default: 84 views with known truth")
    given = parser.parse_args()
    folder = given.photos.expanduser() if given.photos else given.out / "photos"
    if given.photos is None:
        write_views(folder)
    given.out.mkdir(parents=True, exist_ok=True)
    table, page = given.out / "album.json", given.out / "album.html"
    refocus("album", str(folder), "--out", str(table), "--html", str(page))
    rows = json.loads(table.read_text(encoding="utf-8"))
    if given.photos is None:
        print(summary(rows))
        draw(rows, folder, given.out / "before-and-after.png")
        print(f"six of them: {given.out / 'before-and-after.png'}")
    print(f"all answers: {page}")
    refocus("bench", "--only", "stages", "--quick", "--out", str(given.out / "bench"))


if __name__ == "__main__":
    main()
