"""The house keeps its plan: who may import whom, and what the device part must never pull in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEVER = {
    "edge": {"export", "studies", "benchmarks", "cloud_train", "torch", "timm", "onnx", "executorch", "coremltools"},
    "export": {"cloud_train", "studies", "benchmarks", "timm"},
    "benchmarks": {"cloud_train", "studies", "torch", "timm"},
    "cloud_train": {"studies"},
    "studies": set(),
}
EDGE_MAY = {
    "numpy",
    "PIL",
    "msgspec",
    "typer",
    "rich",
    "edge",
    "__version__",
    "_typeshed",
}  # the last: for type checkers alone
# A runtime's file, imported when that runtime is asked for, may import its library; ExecuTorch's brings torch.
RUNTIME_MAY = {
    "onnxruntime.py": {"onnxruntime"},
    "executorch.py": {"executorch", "torch"},
    "tensorrt.py": {"tensorrt", "cuda"},
    "coreml.py": {"coremltools"},
}
# For refocus-edge[update]: the one file of the device that opens a socket, and the one that verifies signed bundles.
FILE_MAY = {"repository.py": {"tuf", "urllib3"}, "signed.py": {"cryptography"}}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {_part(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {_part(f"{node.module}.{alias.name}") for alias in node.names}
    return found


def _part(module: str) -> str:
    """The library of a module; of ours, which of the four packages."""
    first, _, rest = module.partition(".")
    return rest.split(".")[0] if first == "refocus" else first


# Folders from the lowest floor to the highest: each imports from those before it alone, deferred imports included.
FLOORS = {
    "edge": (
        "bundle",
        "runtimes",
        "history",
        "photos",
        "pages",
        "personal",
        "recognize",
        "migration",
        "taper",
        "update",
        "commands",
    ),
    "export": ("program", "targets", "parity", "bundle", "bank", "hub"),
    "benchmarks": ("document", "measure", "report", "rows", "devices", "", "commands"),
    # Data below networks, networks below methods; training returns a result and calls no evaluation and no report; what
    # evaluates stands above what trains, and what releases above what evaluates.
    "cloud_train": (
        "data",
        "backbones",
        "methods/taper",
        "methods/iciia",
        "methods/peft",
        "runs",
        "federated",
        "federated/delivery",
        "train",
        "evaluate",
        "bench",
        "release",
        "pipeline",
        "federated/deployment",
        "service",
        "demos",
        "commands",
    ),
    "studies": (
        "journal",
        "iciia",
        "banks",
        "streams/rivals",
        "streams/rolls",
        "streams",
        "federated",
        "bench/rows",
        "bench",
        "report",
        "commands",
        "",
    ),
}
# Modules beside the folders that lie below all of them; the others lie above, or where "" stands.
BELOW = {
    "edge": {"errors", "files", "registry"},
    "export": {"errors"},
    "cloud_train": {"documents", "errors", "locks", "progress", "render", "resume", "settings", "tracking"},
    "studies": {"comparisons", "encoders", "experiment"},
}
MOST_MODULES = 15


def modules() -> dict[str, Path]:
    """Return every module of the four packages, and of the studies, by its name below ``refocus``."""
    found = {}
    for package in NEVER:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def edges(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            module = name.removeprefix("refocus.")
            if name.startswith(("refocus.", "studies.")):
                found.add(module if module in MODULES else module.rpartition(".")[0])
    return found & MODULES.keys()


def floor(module: str) -> int:
    """How high a module lies in its package."""
    package, *folders, file = MODULES[module].relative_to(ROOT).parts
    if (not folders and file.removesuffix(".py") in BELOW.get(package, ())) or folders == ["methods"]:
        return -1
    floors = FLOORS[package] if "" in FLOORS[package] else (*FLOORS[package], "")
    return floors.index("/".join(folders))


def test_no_folder_imports_from_a_higher_one():
    for module, path in MODULES.items():
        for other in edges(path):
            if other.split(".")[0] == module.split(".")[0] and other != module.split(".")[0]:
                assert floor(other) <= floor(module), f"{module} imports {other}, which lies above it"


def test_no_modules_import_each_other_in_a_circle():
    """Deferred imports count; a package's ``__init__``, which collects its modules' names, does not."""
    left = {name: edges(path) for name, path in MODULES.items() if path.name != "__init__.py"}
    while True:
        leaves = {name for name, used in left.items() if not used & left.keys()}
        if not leaves:
            break
        left = {name: used for name, used in left.items() if name not in leaves}
    circle = {name: sorted(used & left.keys()) for name, used in left.items()}
    assert not circle, circle


def test_no_folder_has_too_many_modules():
    folders = {path.parent for path in MODULES.values()}
    crowded = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert max(crowded.values()) <= MOST_MODULES, crowded


def test_the_map_names_every_folder_from_the_lowest_to_the_highest():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package, floors in FLOORS.items():
        if package == "studies":
            continue  # one row: the installed packages are what users look up
        rows = [line.split("`")[1].rstrip("/") for line in text.splitlines() if line.startswith(f"| `{package}/")]
        listed = [row.partition("/")[2] for row in rows if not row.endswith(".py") and row != package]
        wanted = [floor for floor in floors if floor]
        assert listed == wanted, f"docs/architecture.md lists {listed} of {package}"


def test_other_packages_use_edge_by_its_public_names():
    """``from refocus.edge.FOLDER import NAME``, where the folder's ``__all__`` has the name."""
    for module, path in MODULES.items():
        if module.startswith("edge"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("refocus.edge"):
                continue
            where = node.module.removeprefix("refocus.")
            if where in ("edge.errors", "edge.files", "edge.registry"):
                continue
            assert where == "edge" or where.count(".") == 1, f"{module} reaches into {where}"
            public = public_names(MODULES[where])
            assert {alias.name for alias in node.names} <= public, f"{module}: {where} offers {sorted(public)}"


def public_names(path: Path) -> set[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_every_folder_says_what_of_it_is_public():
    """Its ``__all__`` names what its ``__init__`` offers, or its modules and folders that others import."""
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            public, text = public_names(path), path.read_text(encoding="utf-8")
            assert public, f"{path.relative_to(ROOT)} has no __all__"
            beside = {other.stem for other in path.parent.iterdir() if other.suffix == ".py" or other.is_dir()}
            lacking = {name for name in public - beside if f"{name}" not in text.partition("__all__")[0]}
            assert not lacking, f"{module}: there is no {sorted(lacking)}"


@pytest.mark.parametrize("package", NEVER)
def test_a_room_imports_only_along_the_arrows(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        may = RUNTIME_MAY.get(path.name, set()) if path.parent == ROOT / "edge" / "runtimes" else set()
        forbidden = (imports(path) & NEVER[package]) - may
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_edge_needs_only_its_five_libraries_and_each_runtime_its_own():
    for path in sorted((ROOT / "edge").rglob("*.py")):
        may = RUNTIME_MAY.get(path.name, set()) if path.parent.name == "runtimes" else FILE_MAY.get(path.name, set())
        foreign = imports(path) - EDGE_MAY - may - set(sys.stdlib_module_names)
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


REFUSE_SOCKETS = """
import socket, sys
def refuse(*a, **k): raise RuntimeError("a socket was opened")
socket.socket.__init__ = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
"""


def test_importing_every_folder_of_edge_loads_nothing_of_an_extra_and_opens_no_socket():
    folders = ", ".join(f"refocus.edge.{folder}" for folder in FLOORS["edge"])
    loaded_names = "print(sorted({m.removeprefix('refocus.').split('.')[0] for m in sys.modules}))"
    done = run_python(REFUSE_SOCKETS + f"import {folders}\nfrom refocus import Recognizer\n{loaded_names}")
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {
        "tuf",
        "urllib3",
        "cryptography",
        "torch",
        "timm",
        "onnx",
        "onnxruntime",
        "export",
        "cloud_train",
        "benchmarks",
        "matplotlib",
    }


def test_help_of_every_command_imports_no_torch():
    code = REFUSE_SOCKETS + (
        "from refocus.edge.commands.app import app, register_all\nregister_all()\n"
        "from typer.testing import CliRunner\n"
        "for words in ([], ['train', 'iciia'], ['evaluate'], ['demo'], ['export'], ['recognize'], ['album'], ['inspect'], ['check'], ['upgrade'], ['migrate'], ['accuracy'], ['compatibility'], ['history'], ['condense'], ['bench'], ['bench', 'suite'], ['update', 'run'], ['release', 'publish'], ['pipeline', 'run']):\n"
        "    result = CliRunner().invoke(app, [*words, '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
        "assert 'torch' not in sys.modules and 'onnxruntime' not in sys.modules"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_training_iciia_loads_no_study_no_report_and_no_other_method(tiny_run, tmp_path):
    """Calling ``train_iciia`` on a finished run passes through all of its code but the steps themselves."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from refocus.cloud_train.train import IciiaSettings, train_iciia\n"
        "settings = IciiaSettings.named('default', {'data': {'glyph_clients': {'train': 12, 'validation': 4, 'gate': 4,"
        " 'test': 4}, 'photos_per_client': 24}, 'seeds': [0], 'encoder': {'epochs': 1}, 'recipe': {'epochs': 1},"
        " 'gate': {'windows': 40, 'epochs': 1}, 'block': {'layers': 1}, 'devices': {'accelerator': 'cpu'}})\n"
        f"train_iciia(settings, Path({str(tmp_path / 'run')!r}))\n"
        "ours = sorted(m for m in sys.modules if m.startswith(('refocus.', 'studies')))\n"
        "parts = {part for m in ours for part in m.split('.')}\n"
        "assert not parts & {'studies', 'report', 'taper', 'federated', 'evaluate'}, parts\n"
        "print(len(ours))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) <= 125, done.stdout


def test_a_mistake_in_a_setting_does_not_wait_for_libraries_that_only_training_needs():
    code = (
        "import sys\nimport refocus.cloud_train.train\n"
        "assert not {'timm', 'torchvision', 'lightning_fabric', 'onnxruntime', 'matplotlib', 'sympy'} & set(sys.modules)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_nothing_of_deployed_federation_is_loaded_before_a_command_of_federate_runs():
    code = (
        "import sys\nimport refocus.cloud_train.train.clients\n"
        "from refocus.edge.commands.app import app, register_all\nregister_all()\n"
        "from typer.testing import CliRunner\n"
        "for words in (['federate'], ['federate', 'server'], ['train', 'federated']):\n"
        "    assert CliRunner().invoke(app, [*words, '--help']).exit_code == 0\n"
        "loaded = [name for name in sys.modules if name.startswith(('nvflare', 'refocus.cloud_train.federated.deployment'))]\n"
        "assert not loaded, loaded"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_recognising_opens_no_socket(bundle, photo_file, tmp_path):
    done = run_python(
        REFUSE_SOCKETS + "from pathlib import Path\nfrom refocus import Recognizer, load_bundle\n"
        f"r = Recognizer(load_bundle(Path({str(bundle.folder)!r})), Path({str(tmp_path / 'p.sqlite3')!r}))\n"
        f"print(r.recognize(Path({str(photo_file)!r}).read_bytes()).labels[0])\n"
        "assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
