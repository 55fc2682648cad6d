"""What a process does on the network and in the user's folders, seen from outside: by strace, in a network of its own.

A refusal in Python's ``socket`` does not see native libraries. ``observe`` does. As a command it compares versions of
ONNX Runtime with and without the variable that switches their telemetry off:

    python -m tests.native_sockets 1.28.0 1.29.0 1.32.0 --out docs/results/robustness/native-sockets.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TELEMETRY = "ORT_DISABLE_TELEMETRY"
SCHEMA = 1
LOOK_S = 45  # the first upload comes after half a minute
LOAD_AND_RUN = """
import sys, time, numpy, onnx, onnxruntime
from onnx import TensorProto, helper
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(2, numpy.float32)})
time.sleep(float(sys.argv[1]))
"""


def observe(command: list[str], home: Path, environment: dict[str, str], timeout: float = 300) -> dict[str, object]:
    """Runs a command in a network that leads nowhere, with a home folder of its own.

    Returns:
        ``sockets``: calls of socket(2) by it and its children, other than Unix sockets; ``files``: what it left in the
        home folder; ``status``: its exit status.
    """
    log = home.parent / f"{home.name}.strace"
    home.mkdir()
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), **environment}
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=socket", "-o", str(log), *command]
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh", *traced]
    with subprocess.Popen(words, env=kept, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            said = process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipe
            raise
    calls = [line for line in log.read_text().splitlines() if "socket(" in line and "AF_UNIX" not in line]
    files = sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    return {"sockets": len(calls), "files": files, "status": process.returncode, "said": said[-2000:]}


def compare(versions: list[str], folder: Path) -> list[dict[str, object]]:
    """Every version, with the variable that switches telemetry off and without it."""
    rows: list[dict[str, object]] = []
    for version in versions:
        subprocess.run([sys.executable, "-m", "venv", folder / version], check=True)
        python = folder / version / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", f"onnxruntime=={version}", "numpy", "onnx"], check=True)
        for variable in ("1", ""):
            environment = {TELEMETRY: variable} if variable else {}
            home = folder / f"home-{version}-{variable}"
            seen = observe([str(python), "-c", LOAD_AND_RUN, str(LOOK_S)], home, environment)
            assert seen["status"] == 0, seen["said"]
            row = {"version": version, TELEMETRY: variable, "sockets": seen["sockets"], "files": seen["files"]}
            rows.append(row)
            print(row, flush=True)  # noqa: T201
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.native_sockets")
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(asked.versions, Path(folder))
    command = f"python -m tests.native_sockets {' '.join(asked.versions)} --out {asked.out}"
    document = {"schema_version": SCHEMA, "command": command, "seconds": LOOK_S, "rows": rows}
    asked.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
