"""Runs the whole app under Robolectric on several Androids, against a bundle; draws pictures of its screens if asked.

Needs what build_apk.py needs to link resources, and Maven. Robolectric's Androids come from Maven Central, 460 MB once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_apk import PACKAGE, bundle_zip, link
from build_native import NAME, compile_for_desktop
from catalog import DEMO, DemoError, maven, versions
from results import write_document

APIS = ("26", "33", "35")  # the lowest that is supported, the first with the photo picker, the newest that JDK 17 runs
PICTURES = ("first", "sample", "progress", "grid", "photo", "unknown", "errors", "night")


def prepare(bundle: Path, work: Path) -> None:
    """Links the app's resources with a bundle as its asset, and says where Robolectric finds them and its Androids.

    Args:
        bundle: an exported bundle.
        work: folder for ``gen/`` (R.java) and ``config/``, which the module ``robolectric`` reads.

    Raises:
        DemoError: a tool, or a file of Maven Central, is missing.
    """
    wanted = versions()
    config = work / "config"
    (config / "com/android/tools").mkdir(parents=True)
    linked = link(work, wanted)
    with zipfile.ZipFile(linked, "a") as package:
        package.writestr("assets/bundle.zip", bundle_zip(bundle))
    (config / "com/android/tools/test_config.properties").write_text(
        f"android_resource_apk={linked}\nandroid_merged_manifest={work / 'AndroidManifest.xml'}\n"
        f"android_custom_package={PACKAGE}\n",
        encoding="utf-8",
    )
    name = "org.robolectric:android-all-instrumented"
    lines = [
        f"{name}:{version}={maven(*name.split(':'), version)}".replace(":", "\\:")
        for version in (wanted[f"robolectricApi{api}"] for api in APIS)
    ]
    (config / "robolectric-deps.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(
    home: Path,
    out: Path,
    photos: Path | None = None,
    start: bool = False,
    tests: str = "",
    library: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs the tests of the module ``robolectric``.

    Args:
        home: folder with ``bundle/`` and ``golden/``, as the JVM suite takes it.
        out: folder for what the screens look like, and for the documents that their benchmarks saved.
        photos: somebody's photos, to draw ``screens.png`` from instead of testing.
        start: measures what a start costs, into ``start.json`` of that folder, instead of testing.
        tests: other tests than all, or than those of ``photos`` and ``start``.
        library: the native head for this machine, which tests of class shares need.
    """
    work = DEMO / "robolectric" / "target" / "linked"
    shutil.rmtree(work, ignore_errors=True)
    prepare(home / "bundle", work)
    out.mkdir(parents=True, exist_ok=True)
    usual = "refocus.app.*Test,!refocus.app.model.*"
    drawn = not tests and photos is not None
    tests = tests or ("refocus.app.Pictures" if photos else "refocus.app.StartCost" if start else usual)
    command = ["mvn", "-B", "-f", DEMO / "pom.xml", "-P", "robolectric", "-pl", "robolectric", "-am", "test",
               f"-Dtest={tests}", "-Dsurefire.failIfNoSpecifiedTests=false",
               f"-Drefocus.linked={work}", f"-Drefocus.golden={home}", f"-Drefocus.out={out.resolve()}"]  # fmt: skip
    command += [f"-Drefocus.photos={photos.resolve()}"] if photos else []
    command += [f"-Drefocus.head={library}"] if library else []
    with tempfile.TemporaryDirectory() as scratch:  # for native libraries, 200 MB, which the JVM unpacks and leaves
        command.append(f"-Drefocus.tmp={scratch}")
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1500)
    if drawn and done.returncode == 0:
        side_by_side([out / f"picture-{name}-33.png" for name in PICTURES], out / "screens.png")
    return done


def start_document(measured: Path, out: Path, command: str) -> str:
    """Makes a result document of what a start was measured to cost, and says it in one line.

    Args:
        measured: ``start.json``, as the tests under Robolectric wrote it.
    """
    about = json.loads(measured.read_text(encoding="utf-8"))
    taken = {key: about.pop(key) for key in ("cached_ms", "answering_twice_ms", "pictures_ms")}
    rounds = [dict(zip(taken, row, strict=True)) for row in zip(*taken.values(), strict=True)]
    for key, times in taken.items():
        about[f"median_{key}"] = statistics.median(times)
    about["first_ms"] = rounds[0]["cached_ms"]
    about["ratio"] = statistics.median(row["cached_ms"] / row["answering_twice_ms"] for row in rounds)
    write_document(out, "android_start", about, rounds, command)
    return (
        f"start with {about['photos']} photos: {about['median_cached_ms']:.0f} ms of processor time (the first"
        f" {about['first_ms']:.0f} ms), {about['ratio']:.3f} of answering every photo twice; {out}"
    )


def side_by_side(pictures: Sequence[Path], out: Path) -> None:
    """One picture of several screens of the same size, at half their size, four in a row."""
    from PIL import Image

    screens = [Image.open(path).convert("RGB").reduce(2) for path in pictures]
    width, height = screens[0].size
    rows = -(-len(screens) // 4)
    sheet = Image.new("RGB", ((width + 12) * 4 - 12, (height + 12) * rows - 12), "white")
    for place, screen in enumerate(screens):
        sheet.paste(screen, (place % 4 * (width + 12), place // 4 * (height + 12)))
    sheet.quantize(128).save(out, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=Path, help="folder of photos: draws screens.png from them, and tests nothing")
    parser.add_argument("--start", action="store_true", help="measures what a start costs, and tests nothing")
    parser.add_argument(
        "--out", type=Path, default=DEMO / "build" / "screens", help="folder for pictures of the screens"
    )
    parser.add_argument(
        "--document", type=Path, help="of --start: the result document; default: OUT/android-start.json"
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from golden import write_golden

    from refocus.edge.bundle.load import load_bundle

    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "bundle").symlink_to(given.bundle.resolve())
        write_golden(load_bundle(given.bundle), home / "golden")
        try:
            library = compile_for_desktop(home / NAME)  # class shares need it
            done = run(home, given.out, given.photos, given.start, library=library)
        except (DemoError, FileNotFoundError, RuntimeError) as error:
            sys.stderr.write(f"screens: {error}\n")
            return 1
    if given.start and done.returncode == 0:
        document = given.document or given.out / "android-start.json"
        command = f"python android_demo/tools/screens.py {given.bundle} --start"
        sys.stdout.write(start_document(given.out / "start.json", document, command) + "\n")
        return 0
    sys.stdout.write(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
