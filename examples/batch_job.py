"""A nightly job: recognises the new photos of every person, in order, and appends the answers to a JSON Lines file.

    python batch_job.py bundle photos --out answers.jsonl --profiles profiles

``photos`` has one folder per person; photos in folders inside it are the person's too. Photos that the output already names
are skipped, so the job can be killed and started again. A photo that cannot be decoded is a line with its error. A person
whose history cannot be used, and a photo in nobody's folder, are told on standard error. The job goes on. Exit status: 0;
3 with such photos or people; 1 where nothing could be done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

from refocus import PhotoError, Recognizer, RefocusError
from refocus.edge import profile_path
from refocus.edge.recognize import find_photos


def done(out: Path) -> set[str]:
    """Photos that the output names; a last line that a kill cut off is dropped."""
    if not out.exists():
        return set()
    content = out.read_text(encoding="utf-8")
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        out.write_text(whole, encoding="utf-8")
    return {json.loads(line)["photo"] for line in whole.split("\n") if line}


def profile_of(person: str) -> str:
    """The profile of a person's folder: its name, or a digest of it where a profile cannot have that name."""
    try:
        profile_path(Path(), person)
    except RefocusError:
        return f"folder-{hashlib.sha256(os.fsencode(person)).hexdigest()[:32]}"
    return person


def people(photos: Path) -> dict[str, list[Path]]:
    """Photos by the person's folder, in the order of their paths; those in nobody's folder are under "".

    Raises:
        RefocusError: there is no photo in anybody's folder.
    """
    found: dict[str, list[Path]] = {}
    for photo in find_photos([photos]):
        inside = photo.relative_to(photos).parts
        found.setdefault(inside[0] if len(inside) > 1 else "", []).append(photo)
    if not found.keys() - {""}:
        raise RefocusError(f"{photos}: photos in no person's folder; expected {photos}/PERSON/photo.jpg")
    return found


def run(bundle: Path, photos: Path, out: Path, profiles: Path) -> int:
    """Recognises what is new, and returns how many photos and people could not be used."""
    found, seen = people(photos), done(out)
    Recognizer.open(bundle).close()  # a bundle that cannot be used stops the job at its start
    nobodys = found.pop("", [])
    for photo in nobodys:
        print(f"{photo} is in no person's folder; expected {photos}/PERSON/{photo.name}", file=sys.stderr)
    failed = len(nobodys)
    with out.open("a", encoding="utf-8") as stream:
        for person, theirs in found.items():
            new = [photo for photo in theirs if str(photo.relative_to(photos)) not in seen]
            if not new:
                continue
            profile = profile_of(person)
            try:
                with Recognizer.open(bundle, profile=profile, profiles=profiles) as recognizer:
                    for photo in new:
                        line: dict[str, object] = {"photo": str(photo.relative_to(photos)), "profile": profile}
                        try:
                            answer = recognizer.recognize(photo)
                            line |= {"label": answer.label, "probability": round(float(answer.top(1)[0][1]), 4)}
                        except PhotoError as error:
                            line["error"], failed = str(error), failed + 1
                        stream.write(json.dumps(line) + "\n")
                        stream.flush()
            except RefocusError as error:
                print(f"{person}: {error}", file=sys.stderr)
                failed += 1
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Recognises the new photos of every person.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path, help="one folder per person")
    parser.add_argument("--out", type=Path, default=Path("answers.jsonl"))
    parser.add_argument("--profiles", type=Path, default=Path("profiles"))
    given = parser.parse_args()
    try:
        failed = run(given.bundle, given.photos, given.out, given.profiles)
    except (RefocusError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
