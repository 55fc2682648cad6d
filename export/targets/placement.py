"""What ran where: counted from ONNX Runtime's own profile of one run."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import onnxruntime

from refocus.edge.bundle import Placement
from refocus.export.program.program import TorchProgram

ASKED = "CPUExecutionProvider"


def placement(path: Path, program: TorchProgram) -> Placement:
    """Runs the program once and reads which provider executed how many nodes of which operator."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=[ASKED])
        examples = zip(program.inputs, program.example_inputs(), strict=True)
        session.run(None, {spec.name: value.numpy() for spec, value in examples})
        events = json.loads(Path(session.end_profiling()).read_text())
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and arguments.get("provider"):
            counts[arguments["provider"]][arguments["op_name"]] += 1
    operators = {provider: dict(sorted(nodes.items())) for provider, nodes in sorted(counts.items())}
    other = {op: f"ran on {provider}" for provider, nodes in operators.items() if provider != ASKED for op in nodes}
    return Placement(asked=ASKED, operators=operators, fallbacks=other)
