"""ExecuTorch's Python runtime: for checks on a desktop and for boards; a phone loads the same file natively.

The one module of ``edge`` that brings torch with it: ExecuTorch's Python package imports it for its tensors.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import platform
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.bundle.manifest import Artifact
from refocus.edge.bundle.personal_weights import TENSORS, PersonalWeights
from refocus.edge.bundle.verified_files import Content
from refocus.edge.bundle.weight_patching import weight_file_of
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes.base import EXECUTORCH_PROGRAM, EXECUTORCH_WEIGHTS, Program, Source, in_one_line
from refocus.edge.runtimes.library_news import without_native_lines, without_warning
from refocus.edge.runtimes.placement import Part, Ran, no_profile, parts_of

# A torch newer than the packages beside it warns of a call of theirs, which no user can change.
with without_warning("torch.utils._pytree", "register_constant() on Enum subclasses is deprecated"):
    import torch
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime, Verification

VERSION = version("executorch")
METHOD, PORTABLE = "forward", "portable"
_NATIVE = "native_call_"  # before the name of a portable operator in an ETDump
_PTD_DATA = slice(32, 40)  # where a .ptd file says how long everything before its numbers is
# What the pool of threads says of files that only phones have, and that it is of the size that was asked for.
_OF_THE_POOL = rb"\[cpuinfo_utils\.cpp:\d+\] |\[threadpool\.cpp:\d+\] Resetting threadpool to "
logger = logging.getLogger(__name__)
_pool, _pool_is_settled = threading.Lock(), False


def threads_of_process(asked: int) -> int:
    """Threads on which every program of this process runs: as many as the first one asks for.

    ExecuTorch has one pool for all of them. It is replaced before there is a program and never after: under a loaded
    one, that ends the process.

    Args:
        asked: 0 leaves it to ExecuTorch.
    """
    global _pool_is_settled
    with _pool:
        if not _pool_is_settled:
            with without_native_lines(_OF_THE_POOL):
                if asked not in (0, portable_lib._threadpool_get_thread_count()):
                    portable_lib._unsafe_reset_threadpool(asked)
            _pool_is_settled = True
        found: int = portable_lib._threadpool_get_thread_count()
        return found


class Loaded(Program):
    """A program in ExecuTorch. The delegate is fixed when the program is exported; there is none to choose here.

    Attributes:
        fallback: why it runs on another number of threads than was asked for; "" where it does not.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if source.provider not in ("", "xnnpack"):
            raise RuntimeUnavailable(f"--provider {source.provider}: a .pte file runs on the delegate it was made for")
        runtime, artifact = Runtime.get(), source.artifact
        missing = [name for name in _delegates(artifact.producer) if not runtime.backend_registry.is_available(name)]
        if missing:
            raise RuntimeUnavailable(f"{artifact.file} needs {', '.join(missing)}, which this ExecuTorch build lacks")
        self.threads, self.fallback = threads_of_process(source.threads), ""
        if source.threads not in (0, self.threads):
            self.fallback = (
                f"ExecuTorch runs all programs of a process on as many threads as the first: {self.threads} here, not"
                f" the {source.threads} that were asked for"
            )
            _warn_once(self.fallback)
        # The program reads from these bytes for as long as it lives.
        self._content, self._profile = source.program(EXECUTORCH_PROGRAM), source.profile
        with _weights_of(source) as data:
            try:
                self._program: Any = runtime.load_program(
                    self._content,
                    verification=Verification.InternalConsistency,
                    enable_etdump=source.profile is not None,
                    data_path=data,
                )
                self._method: Any = self._program.load_method(METHOD)
            except Exception as error:  # whatever the library raises for a program it cannot take
                raise BundleError(
                    f"{artifact.file} is not a program for executorch {VERSION}: {in_one_line(error)}"
                ) from None
        if self._method is None:
            raise BundleError(f"{artifact.file} has no method {METHOD}; export it again")
        metadata = self._method.metadata
        found = metadata.num_inputs(), metadata.num_outputs()
        if found != (len(artifact.inputs), len(artifact.outputs)):
            raise BundleError(
                f"{artifact.file} has {found[0]} inputs and {found[1]} outputs, its manifest says"
                f" {len(artifact.inputs)} and {len(artifact.outputs)}; export it again"
            )

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        # A feature that came from the store is read-only memory, which torch warns about; nothing writes to inputs.
        arrays = [np.require(inputs[tensor.name], None, ["C", "W"]) for tensor in self.artifact.inputs]
        try:
            # Outputs live in the program's own memory until the next run.
            return [output.numpy().copy() for output in self._method.execute([*map(torch.from_numpy, arrays)])]
        except Exception as error:  # whatever the library raises
            raise self.failed(error) from None

    def ran_on(self) -> str:
        return self._delegate() + (f" ({self.fallback})" if self.fallback else "")

    def _delegate(self) -> str:
        return ", ".join(_delegates(self.artifact.producer)) or "portable operators"

    def placement(self) -> tuple[Part, ...]:
        if self._profile is None:
            raise no_profile(self.artifact.file)
        file, self._profile = self._profile / "run.etdp", None
        self._program.write_etdump_result_to_file(str(file), "")
        delegate = next(iter(_delegates(self.artifact.producer)), PORTABLE)
        calls, operators = newest_run(file, delegate)
        return parts_of(calls, [delegate], _nodes(self.artifact, delegate), operators)

    def numeric_path(self) -> str:
        return f"executorch {VERSION} {self._delegate()} {platform.machine()}"

    def close(self) -> None:
        self.closed = True
        self._method = self._program = None
        self._content = b""


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning(text)


def newest_run(etdump: Path, delegate: str) -> tuple[list[Ran], list[Ran]]:
    """The newest run of an ETDump: calls of the delegate and of portable operators in the order of the run, and the
    operators within them, by the delegate's names, which end in a number of the operator.

    Raises:
        ValueError: nothing ran.
    """
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    dump = deserialize_from_etdump_flatcc(etdump.read_bytes())
    events = [event.profile_event for run in dump.run_data for event in run.events if event.profile_event is not None]
    runs = [event.start_time for event in events if event.name == "Method::execute"]
    if not runs:
        raise ValueError(f"{etdump.name}: the program was not run")
    providers = {"DELEGATE_CALL": delegate, "OPERATOR_CALL": PORTABLE}
    calls = [event for event in events if event.name in providers and event.start_time >= max(runs)]
    calls.sort(key=lambda event: event.start_time)
    found = [Ran(providers[str(call.name)], (call.end_time - call.start_time) / 1e6) for call in calls]
    return found, [*_operators(events, max(runs), delegate)]


def _operators(events: Iterable[Any], start: int, delegate: str) -> Iterator[Ran]:
    for event in events:
        of_delegate, name = event.delegate_debug_id_str, str(event.name)
        if event.start_time >= start and (of_delegate or name.startswith(_NATIVE)):
            said = re.sub(r" #\d+$", "", of_delegate) if of_delegate else name.removeprefix(_NATIVE)
            provider = delegate if of_delegate else PORTABLE
            yield Ran(provider, (event.end_time - event.start_time) / 1e6, said)


def _nodes(artifact: Artifact, delegate: str) -> dict[str, int]:
    """Operators by delegate, which the file itself fixes; empty where its manifest does not say."""
    placed = artifact.placement
    if placed is None:
        return {}
    names = {name: name if name == PORTABLE else delegate for name in placed.operators}
    return {names[name]: sum(counts.values()) for name, counts in placed.operators.items()}


@contextlib.contextmanager
def _weights_of(source: Source) -> Iterator[Path | None]:
    """The file that the program's weights are read from, for as long as it is loaded; None: they are inside.

    Raises:
        PersonalWeightsError: a person's do not fit.
    """
    content = _weights_content(source)
    if content is None:
        yield None
        return
    # The runtime takes a path alone. Only this user may read or replace the file, and it is gone once it was read.
    with tempfile.TemporaryDirectory(prefix="refocus-") as folder:
        path = Path(folder) / EXECUTORCH_WEIGHTS
        path.write_bytes(content)
        yield path


def _weights_content(source: Source) -> Content | None:
    shared, placed = source.files.get(EXECUTORCH_WEIGHTS), source.artifact.personal
    if source.weights is None:
        return shared
    if placed is None or source.weights.path.suffix != TENSORS:
        check_weights(shared, source.weights)
        return source.weights.content
    return weight_file_of(source.weights, source.file(placed.file), placed).data


def check_weights(shared: Content | None, weights: PersonalWeights) -> None:
    """A person's ``.ptd`` is the bundle's own with other numbers in it, and nothing else.

    The runtime reads as many bytes as the program needs, whatever the file says it has: a shorter tensor would be read
    beyond its end. XNNPACK looks tensors up under the hash of what they held at export, so names must stay too.

    Args:
        shared: content of the bundle's own weight file; None where its program holds its weights itself.

    Raises:
        PersonalWeightsError: they are not such a file, or the bundle has none to compare them with.
    """
    if shared is None:
        raise weights.does_not_fit("the bundle's program keeps no weights outside itself")
    own, theirs = memoryview(shared), weights.content
    data = int.from_bytes(own[_PTD_DATA], "little")
    if weights.path.suffix != Path(EXECUTORCH_WEIGHTS).suffix or len(own) != len(theirs) or own[:data] != theirs[:data]:
        file = weights.path.name
        raise weights.does_not_fit(f"{file} is not {EXECUTORCH_WEIGHTS} of the bundle with other numbers in it")


def _delegates(producer: dict[str, str]) -> list[str]:
    return [name for name in producer.get("delegates", "").split(",") if name]
