"""The Python recogniser and ONNX Runtime's wheels for arm64, on processors that QEMU emulates.

Debian's Python for arm64 is unpacked beside this machine's own, with the wheels that a device would install.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import emulate
import pytest

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]
CACHE = Path.home() / ".cache" / "refocus"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
NEEDS = ("onnxruntime", "numpy", "pillow", "msgspec", "typer", "rich")  # of the device: pyproject.toml
RIGHT_WITH_ENTRY, WITHOUT_THE_ENTRY = "1.26.0", "1.24.4"
RUN = "import sys; from refocus.edge.commands.app import main; main()"


@dataclass(frozen=True)
class Device:
    """A system for arm64 with Refocus.

    Attributes:
        root: its files; Python's packages are in ``packages``.
        home: where it keeps what it notes.
    """

    root: Path
    home: Path

    def refocus(self, processor: str, *arguments: object, onnxruntime: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command on a processor, with the newest ONNX Runtime that is supported or another one."""
        found = [REPOSITORY, self.root / "packages"]
        found[1:1] = [self.root / f"onnxruntime-{onnxruntime}"] if onnxruntime else []
        environment = {"PYTHONPATH": ":".join(map(str, found)), "XDG_CACHE_HOME": str(self.home / processor),
                       "PYTHONPYCACHEPREFIX": str(self.root / "compiled"), "OMP_NUM_THREADS": "1"}  # fmt: skip
        line = emulate.command(processor, self.root, environment, python_of(self.root))
        return subprocess.run([*line, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, timeout=900)

    def noted(self, processor: str) -> list[Path]:
        """What passed its self-test there."""
        return list((self.home / processor / "refocus" / "checks").glob("*"))


def python_of(root: Path) -> Path:
    return next(path for path in sorted((root / "usr" / "bin").glob("python3.*")) if path.name[8:].isdigit())


@pytest.fixture(scope="module")
def system():
    """The files of the system, made once for one recipe."""
    for tool in ("apt-get", "dpkg", emulate.QEMU):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing; the suite for arm64 needs Debian and qemu-user-static")
    recipe = Path(__file__).read_bytes() + (REPOSITORY / "constraints.txt").read_bytes()
    kept = CACHE / f"arm64-{hashlib.sha256(recipe).hexdigest()[:16]}"
    if not kept.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            (Path(scratch) / "root").mkdir()
            install(Path(scratch) / "root", Path(scratch))
            (Path(scratch) / "root").rename(kept)
    return kept


@pytest.fixture
def device(system, tmp_path):
    return Device(system, tmp_path)


def install(root: Path, scratch: Path) -> None:
    """Unpacks Debian's Python and the wheels into a folder."""
    for name in ("lists/partial", "archives/partial"):
        (scratch / name).mkdir(parents=True)
    settings = {"APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State::Lists": scratch / "lists",
                "Dir::State::status": "/dev/null", "Dir::Cache::Archives": scratch / "archives", "Debug::NoLocking": "1",
                "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": ""}  # fmt: skip
    apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    get(*apt, "update")
    get(*apt, "--yes", "--download-only", "--no-install-recommends", "install", *PACKAGES)
    for package in sorted((scratch / "archives").glob("*.deb")):
        get("dpkg", "-x", package, root)
    constraints = "--constraint", REPOSITORY / "constraints.txt"
    wheels(root, root / "packages", scratch / "wheels", *constraints, *NEEDS)
    for version in (RIGHT_WITH_ENTRY, WITHOUT_THE_ENTRY):
        out = root / f"onnxruntime-{version}"
        wheels(root, out, scratch / version, "--no-deps", f"onnxruntime=={version}")
    card = root / "packages" / "refocus-0.dist-info"
    card.mkdir()
    (card / "METADATA").write_text("Metadata-Version: 2.1\nName: refocus\nVersion: 0\n")
    (card / "entry_points.txt").write_text("[refocus.commands]\nedge = refocus.edge.commands.register:register\n")


def wheels(root: Path, out: Path, scratch: Path, *wanted: object) -> None:
    platforms = [word for number in ("2_28", "2_27", "2_17") for word in ("--platform", f"manylinux_{number}_aarch64")]
    version = python_of(root).name.removeprefix("python")
    get(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", *platforms, "--implementation", "cp",
        "--python-version", version, "--dest", scratch, *wanted)  # fmt: skip
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(out)


def get(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"{' '.join(map(str, command[:4]))} failed: {done.stderr.strip()[-500:]}")


@pytest.mark.parametrize("processor", ["max", "cortex-a76"])
def test_a_photo_is_recognised_on_arm64_as_here(device, bundle, photo_file, processor, refocus):
    """With SME and without; the self-test comes first, and is noted."""
    done = device.refocus(processor, "recognize", bundle.folder, photo_file, "--json")
    assert done.returncode == 0, done.stderr
    here = refocus("recognize", bundle.folder, photo_file, "--json")
    assert labels(done.stdout) == labels(here.stdout)
    assert len(device.noted(processor)) == 1


def test_a_version_that_is_wrong_with_sme_is_right_without_kleidiai(device, affected, photo_file):
    done = device.refocus("max", "recognize", affected.folder, photo_file, onnxruntime=RIGHT_WITH_ENTRY)
    assert done.returncode == 0, done.stderr
    assert device.noted("max")


def test_a_version_that_stays_wrong_with_sme_is_refused_before_its_first_answer(device, affected, photo_file):
    """The control: 1.24 has the error, and no entry that turns KleidiAI off."""
    done = device.refocus("max", "recognize", affected.folder, photo_file, onnxruntime=WITHOUT_THE_ENTRY)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.strip().splitlines()
    assert "fails its self-test on this processor with onnxruntime 1.24.4: self-test/" in line
    assert not device.noted("max")


def labels(output: str) -> list[str]:
    """Labels of the answer, most likely first."""
    [found] = json.loads(output)
    return [shown["label"] for shown in found["answer"]]
