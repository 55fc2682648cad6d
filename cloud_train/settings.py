"""Settings of a command: nested dataclasses from a TOML file and ``--set section.key=value``, and back to TOML.

A file need not say everything: what it leaves out keeps the default. All that is wrong with a file is reported at once,
each with the line and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w
import tomllib

from refocus.cloud_train.errors import UsageError
from refocus.edge.files import read_file

T = TypeVar("T")
_MAX_BYTES = 1 << 20
_ALIKE = 0.6


def read_settings(defaults: T, path: Path | None = None, changes: Sequence[str] = ()) -> T:
    """Settings that a file and ``--set`` change.

    Args:
        defaults: a dataclass or msgspec struct, nested as deep as one likes.
        path: TOML with a table for each nested one.
        changes: as ``recipe.epochs=12``, applied after the file. A value is read as TOML; what is no TOML is text.

    Raises:
        UsageError: the file cannot be read or is no TOML; or all unknown keys and all values of another type.
    """
    document, lines, where = {}, "", "--set"
    if path is not None:
        lines, where = _text(path), f"--config {path}"
        try:
            document = tomllib.loads(lines)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{where} is no TOML: {error}") from None
    for change in changes:
        _put(document, change)
    errors: list[str] = []
    settings = _merged(defaults, document, (), errors, lines)
    if errors:
        raise UsageError("\n  ".join([f"{where}:", *errors]) if len(errors) > 1 else f"{where}: {errors[0]}")
    return settings


def settings_toml(settings: Any) -> str:
    """All settings as TOML that :func:`read_settings` takes; None is left out, which is what it means."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(settings)), multiline_strings=False)


def _text(path: Path) -> str:
    try:
        return read_file(path, _MAX_BYTES, "a TOML file of settings", UsageError).decode()
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: expected text in UTF-8") from None


def _put(document: dict[str, Any], change: str) -> None:
    name, sign, text = change.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not sign or not all(keys):
        raise UsageError(f"--set {change}: expected section.key=value, as recipe.epochs=12")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    for key in keys[:-1]:
        inner = document.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {change}: {key} is a value, not a section")
        document = inner
    document[keys[-1]] = value


def _merged(defaults: Any, document: Mapping[str, Any], path: tuple[str, ...], errors: list[str], text: str) -> Any:
    """``defaults`` with the values of a table; what is wrong is added to ``errors``."""
    types = typing.get_type_hints(type(defaults))
    known = [name for name in types if hasattr(defaults, name) and name in _fields(defaults)]
    changed = {}
    for key, value in document.items():
        here = (*path, key)
        if key not in known:
            near = get_close_matches(key, known, 1, _ALIKE)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            errors.append(f"{_name(here)} is unknown{_line(text, here)}; {hint}")
            continue
        own = getattr(defaults, key)
        if _is_settings(own) and isinstance(value, dict):
            changed[key] = _merged(own, value, here, errors, text)
            continue
        try:
            changed[key] = msgspec.convert(value, types[key], strict=False)
        except msgspec.ValidationError as error:
            errors.append(f"{_name(here)} = {value!r}{_line(text, here)}: {error}")
    try:
        return (
            msgspec.structs.replace(defaults, **changed)
            if isinstance(defaults, msgspec.Struct)
            else (dataclasses.replace(defaults, **changed))
        )
    except UsageError as error:  # of a dataclass that checks itself
        errors.append(f"{_name(path) or 'settings'}: {error}")
        return defaults


def _fields(settings: Any) -> tuple[str, ...]:
    if isinstance(settings, msgspec.Struct):
        return settings.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(settings))


def _is_settings(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _name(path: Sequence[str]) -> str:
    return ".".join(path)


def _line(text: str, path: Sequence[str]) -> str:
    """`` (line N)`` of a key in a file; "" where it came from ``--set``, or stands in an inline table."""
    for number, (table, key) in enumerate(_keys(text), 1):
        if (key and [*table, *key] == list(path)) or (not key and table == list(path)):
            return f" (line {number})"
    return ""


def _keys(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The table and the key of each line."""
    table: list[str] = []
    for line in text.splitlines():
        stripped = line.split("#")[0].strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            table = [part.strip().strip("\"'") for part in stripped.strip("[]").split(".")]
            yield table, []
        else:
            name = stripped.partition("=")[0] if "=" in stripped else ""
            yield table, [part.strip().strip("\"'") for part in name.split(".")] if name else [""]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
