"""Programs that ``torch.export.save`` wrote (.pt2), without what torch would run or unpickle while it loads them."""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from refocus.export.errors import ExportError, told

_MAX_MEMBER_BYTES = 256 << 20  # of a saved program's graph, of its sample inputs, of each of its configurations
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_MODEL, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_FORMAT = {"archive_format", "archive_version", "byteorder", "version", ".data/version"}
_PLAIN = re.compile("(weight|tensor)_[0-9]+")  # files of tensors as plain bytes
_NAME = re.compile(r"[\w .,:#+>/-]*")  # nothing that ends a name or a string in code
_LEFT_OUT = ("metadata", "guards_code")  # where a node comes from, which nobody reads; conditions, which torch executes
_JSON = ("in_spec", "out_spec", "context")  # whose text is JSON of names
_MAX_EXPRESSION = 10_000  # characters
_OF_SIZES = (
    ast.Expression, ast.Name, ast.keyword, ast.expr_context, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def checked_copy(content: bytes, path: Path) -> tuple[io.BytesIO, str]:
    """An archive of all that a saved program consists of, and the version of torch that saved it.

    Torch unpickles tensors that a configuration calls pickled, constants whose files are not named as tensors', what
    its older formats hold and, where reading them as tensors alone fails, the sample inputs. The archive has none of
    these but the sample inputs, which were read as tensors alone and saved again.

    Torch also makes Python of the graph: it evaluates sizes that are expressions, runs guards of inputs as they stand,
    and writes names into code. The archive's graph has names that are names, expressions of sizes alone, and neither
    guards nor what a network's source looked like.

    Raises:
        ExportError: it is no such file, tensors do not lie in it as plain bytes, as torch writes them since 2.9, or its
            graph has more in it than sizes and names.
    """
    copy = io.BytesIO()
    try:
        with _opened(content) as archive, zipfile.ZipFile(copy, "w") as kept:
            found = {member.filename.partition("/")[2]: member for member in archive.infolist()}
            if not found.keys() >= {"archive_format", *_CONFIGS}:
                raise ExportError(_pickled(path, "it is in an older format"))
            small = {name: _read(archive, found[name]) for name in (*_FORMAT & found.keys(), *_CONFIGS, _MODEL)}
            for name in _CONFIGS:
                config = _object(json.loads(small[name]), name)
                small[name] = json.dumps(config).encode()  # what is checked is what torch reads
                for file in _files_of(config, name, path):
                    kept.writestr(f"program/{file}", archive.read(found[file]))
            small[_SAMPLES] = _tensors_alone(_read(archive, found[_SAMPLES]), path)
            graph = _object(json.loads(small[_MODEL]), _MODEL)
            small[_MODEL] = json.dumps(_plain(graph, path)).encode()
            for name, member in small.items():
                kept.writestr(f"program/{name}", member)
        saved_by = graph.get("torch_version", "of another version")
    except ExportError:
        raise
    except Exception as error:  # zipfile, its decompressors and json raise many types
        raise ExportError(f"{path} is not a program of torch.export.save ({told(error)})") from None
    copy.seek(0)
    return copy, str(saved_by)[:40].partition("+")[0]


def _plain(value: Any, path: Path, key: str = "") -> Any:
    """A part of the graph's JSON as the archive has it; ExportError where torch would make other code of it."""
    if key in _LEFT_OUT:
        return type(value)()
    if isinstance(value, dict):
        of_names = key.endswith("_values")  # tensor_values and its like: its keys are names of values
        return {_plain(name, path): _plain(inner, path, "" if of_names else name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, path) for inner in value]
    if not isinstance(value, str) or _NAME.fullmatch(value):
        return value
    if key == "expr_str":
        if not _is_of_sizes(value):
            raise ExportError(f"{path}: {value[:60]!r} in its graph is no expression of sizes; it would run as code")
    elif key in _JSON:
        _plain(json.loads(value), path, key)
    else:
        raise ExportError(f"{path}: {value[:60]!r} in its graph is no name, and torch writes names into code")
    return value


def _is_of_sizes(text: str) -> bool:
    """Whether sympy, which evaluates Python, makes a size of an expression, and nothing else."""
    import sympy  # takes seconds, and of commands only an export of such a program needs it
    from torch.utils._sympy import functions

    if len(text) > _MAX_EXPRESSION:
        return False
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Call):
            made = (
                getattr(functions, node.func.id, getattr(sympy, node.func.id, None))
                if isinstance(node.func, ast.Name)
                else None
            )
            if not (isinstance(made, type) and issubclass(made, sympy.Basic)):
                return False
        elif isinstance(node, ast.Constant):  # sympy evaluates text again: a name, or a number
            if isinstance(node.value, str | bytes) and not re.fullmatch(r"\w+([.]\d+)?", str(node.value)):
                return False
        elif not isinstance(node, _OF_SIZES):
            return False
    return True


def _files_of(config: dict[str, Any], name: str, path: Path) -> set[str]:
    """The files of tensors that a configuration lists; ExportError where one is pickled."""
    files = set()
    for tensor, value in _object(config["config"], name).items():
        entry = _object(value, name)
        if entry.get("use_pickle") or not _PLAIN.fullmatch(str(entry.get("path_name"))):
            raise ExportError(_pickled(path, f"{tensor} is pickled"))
        files.add(f"{name.rpartition('/')[0]}/{entry['path_name']}")
    return files


def _tensors_alone(samples: bytes, path: Path) -> bytes:
    """Sample inputs that ``torch.save`` wrote, read as tensors and plain values alone, and saved again; b"" if none."""
    if not samples:
        return samples
    buffer = io.BytesIO()
    try:
        with _opened(samples):
            torch.save(torch.load(io.BytesIO(samples), "cpu", weights_only=True), buffer)
    except Exception as error:  # torch raises many types
        why = "objects" if isinstance(error, pickle.UnpicklingError) else told(error)  # torch says how to load them
        raise ExportError(_pickled(path, f"its sample inputs are not tensors alone ({why})")) from None
    return buffer.getvalue()


def _opened(content: bytes) -> zipfile.ZipFile:
    """A zip archive whose members are together no larger than itself, as torch writes them (ValueError)."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    if sum(member.file_size for member in archive.infolist()) > len(content):
        raise ValueError("its members are larger than the file")
    return archive


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member that holds no weights (ValueError)."""
    if member.file_size > _MAX_MEMBER_BYTES:
        raise ValueError(f"{member.filename} has {member.file_size} bytes, the limit is {_MAX_MEMBER_BYTES}")
    return archive.read(member)


def _object(value: Any, name: str) -> dict[str, Any]:
    """A JSON object, from the member of that name (ValueError)."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds a {type(value).__name__}, expected an object")
    return value


def _pickled(path: Path, what: str) -> str:
    return f"{path}: {what}, and pickles are never opened; save it again with torch 2.9 or newer"
