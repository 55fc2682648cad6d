"""A nightly job: recognises the new photos of every person, in order, and appends the answers to a JSON Lines file.

    python batch_job.py bundle photos --out answers.jsonl --profiles profiles

``photos`` has one folder per person. Photos that the output already names are skipped, so the job can be killed and started
again. A photo that cannot be decoded is a line with its error, and the job goes on. Exit status: 0; 3 with such photos.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from refocus import PhotoError, Recognizer

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".heic"}


def done(out: Path) -> set[str]:
    """Photos that the output names; a last line that a kill cut off is dropped."""
    if not out.exists():
        return set()
    content = out.read_text(encoding="utf-8")
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        out.write_text(whole, encoding="utf-8")
    return {json.loads(line)["photo"] for line in whole.splitlines()}


def run(bundle: Path, photos: Path, out: Path, profiles: Path) -> int:
    """Recognises what is new, and returns how many photos could not be used."""
    seen, failed = done(out), 0
    with out.open("a", encoding="utf-8") as stream:
        for person in sorted(path for path in photos.iterdir() if path.is_dir()):
            new = [
                p
                for p in sorted(person.iterdir())
                if p.suffix.lower() in SUFFIXES and str(p.relative_to(photos)) not in seen
            ]
            if not new:
                continue
            with Recognizer.open(bundle, profile=person.name, profiles=profiles) as recognizer:
                for photo in new:
                    line: dict[str, object] = {"photo": str(photo.relative_to(photos))}
                    try:
                        answer = recognizer.recognize(photo)
                        line |= {"label": answer.label, "probability": round(float(answer.top(1)[0][1]), 4)}
                    except PhotoError as error:
                        line["error"], failed = str(error), failed + 1
                    stream.write(json.dumps(line, ensure_ascii=False) + "\n")
                    stream.flush()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Recognises the new photos of every person.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path, help="one folder per person")
    parser.add_argument("--out", type=Path, default=Path("answers.jsonl"))
    parser.add_argument("--profiles", type=Path, default=Path("profiles"))
    given = parser.parse_args()
    failed = run(given.bundle, given.photos, given.out, given.profiles)
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
