"""Deals the photos of a data set to people who each meet a few classes, as shoppers of one shop do.

    python shoppers.py grocery-store.zip shoppers.zip --classes 5 --photos 32

Reads a zip with ``metadata.csv`` (file_name, label, split, and more), and writes another with a column ``client``. A person
has photos of one split alone, and no photo has two people, so people of the split test can judge a release
(``refocus pipeline``). Photos that are left when nobody else can be given ``--photos`` of them are left out, those of other
splits than test go to one more person.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import zipfile
from collections import defaultdict
from pathlib import Path

Row = dict[str, str]


def deal(rows: list[Row], classes: int, photos: int, draw: random.Random) -> list[list[Row]]:
    """Photos of each person: of so many classes, as even as they go, drawn by how many photos a class has left."""
    left: dict[str, list[Row]] = defaultdict(list)
    for row in draw.sample(rows, len(rows)):
        left[row["label"]].append(row)
    people = []
    while len(left) >= classes:
        met: list[str] = []
        while len(met) < classes:
            names = [name for name in left if name not in met]
            met += draw.choices(names, [len(left[name]) for name in names])
        taken: list[Row] = []
        while len(taken) < photos and any(left[name] for name in met):
            taken += [left[name].pop() for name in met if left[name]][: photos - len(taken)]
        people.append(taken)
        left = defaultdict(list, {name: some for name, some in left.items() if some})
    return [taken for taken in people if len(taken) == photos]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="zip of photos with metadata.csv")
    parser.add_argument("out", type=Path, help="zip that is written")
    parser.add_argument("--classes", type=int, default=5, help="classes that a person meets")
    parser.add_argument("--photos", type=int, default=32, help="photos of a person")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with zipfile.ZipFile(asked.source) as source, zipfile.ZipFile(asked.out, "w") as out:
        rows = list(csv.DictReader(io.TextIOWrapper(source.open("metadata.csv"), encoding="utf-8", newline="")))
        given, draw = [], random.Random(asked.seed)
        for split in sorted({row["split"] for row in rows}):
            own = [row for row in rows if row["split"] == split]
            for number, taken in enumerate(deal(own, asked.classes, asked.photos, draw)):
                given += [{**row, "client": f"{split}-{number:03d}"} for row in taken]
            if split != "test":
                known = {row["file_name"] for row in given}
                given += [{**row, "client": f"{split}-others"} for row in own if row["file_name"] not in known]
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [*given[0]], lineterminator="\n")
        table.writeheader()
        table.writerows(given)
        out.writestr("metadata.csv", text.getvalue())
        for row in given:
            out.writestr(row["file_name"], source.read(row["file_name"]))
    print(f"{asked.out}: {len(given)} photos of {len({row['client'] for row in given})} people")


if __name__ == "__main__":
    main()
