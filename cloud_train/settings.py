"""Settings of a command: nested dataclasses from a TOML file and ``--set section.key=value``, and back to TOML.

A file need not say everything: what it leaves out keeps the default. All that is wrong with a file is reported at once,
each with the line and, for an unknown key, the nearest known one. What a setting means stands under ``Attributes`` in
the docstring of its dataclass, and nowhere else. ``ELSEWHERE`` of a dataclass says where what is no setting there goes.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import tomli_w
import tomllib

from refocus.cloud_train.errors import UsageError
from refocus.edge.files import read_file

T = TypeVar("T")
_MAX_BYTES = 1 << 20
_ALIKE = 0.6

MOST_SEED = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegativeCount = Annotated[int, msgspec.Meta(ge=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


DERIVED = {"derived": True}  # metadata of a dataclass's field that is no setting: others decide it


@dataclasses.dataclass(frozen=True)
class Place:
    """Marks a setting as the path of a file or folder, relative to the file of settings or to where one works.

    Attributes:
        words: values that are not paths.
        prefixes: how values begin that are not paths.
    """

    words: tuple[str, ...] = ("",)
    prefixes: tuple[str, ...] = ()


FilePath = Annotated[str, Place()]
Photos = Annotated[str, Place(("", "glyphs", "moving-glyphs"), ("hf:",))]


def read_settings(
    defaults: T | Callable[[Mapping[str, Any]], T],
    path: Path | None = None,
    changes: Sequence[str] = (),
    flag: str = "--config ",
) -> T:
    """Settings that a file and ``--set`` change.

    Args:
        defaults: a dataclass or msgspec struct, nested as deep as one likes; or what makes it of all that is given.
        path: TOML with a table for each nested one. Its relative paths are relative to its folder.
        changes: as ``recipe.epochs=12``, applied after the file. A value is TOML; anything else is text.
        flag: before the path in error messages.

    Raises:
        UsageError: the file cannot be read or is not valid TOML; or all unknown keys and all values of another type.
    """
    document, lines, where = {}, "", "--set"
    if path is not None:
        where = f"{flag}{path}"
        lines = _text(path, where)
        try:
            document = tomllib.loads(lines)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{where} is not valid TOML: {error}") from None
    given = copy.deepcopy(document)
    for change in changes:
        _put(given, change)
    start: T = defaults(given) if callable(defaults) else defaults
    if path is not None:
        for keys, place in _places(start):
            _locate(document, keys, place, path.resolve().parent)
    for change in changes:
        _put(document, change)
    overridden = {tuple(change.partition("=")[0].strip().split(".")) for change in changes}
    return located(changed_by(start, document, where, lines, overridden))


def changed_by(
    defaults: T,
    document: Mapping[str, Any],
    where: str,
    text: str = "",
    overridden: Collection[tuple[str, ...]] = (),
) -> T:
    """Settings with the values of nested tables, paths as they stand.

    Args:
        where: what is said to be wrong.
        text: of the file that the tables are of; its lines are named.
        overridden: keys whose values are not the file's but come from ``--set``.

    Raises:
        UsageError: all unknown keys and all values of another type.
    """
    errors: list[str] = []
    # Of all settings: one of them may have been put into the wrong table.
    everywhere = [keys for keys, _ in keys_of(defaults)]

    def merged(section: Any, table: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        """A section with the values of a table; what is wrong is added to ``errors``."""
        types = typing.get_type_hints(type(section), include_extras=True)
        known = [name for name in types if hasattr(section, name) and name in _fields(section)]
        changed: dict[str, Any] = {}
        replace = msgspec.structs.replace if isinstance(section, msgspec.Struct) else dataclasses.replace
        for key, value in table.items():
            here = (*path, key)
            line = " (--set)" if text and here in overridden else _line(text, here)
            if key not in known:
                elsewhere = getattr(section, "ELSEWHERE", {}).get(key)
                more = f"; {elsewhere}" if elsewhere else ""
                errors.append(f"{_name(here)} is unknown{line}; {_nearest(key, known, everywhere)}{more}")
                continue
            own = getattr(section, key)
            if _is_settings(own) and isinstance(value, dict):
                changed[key] = merged(own, value, here)
                continue
            try:
                changed[key] = msgspec.convert(value, types[key], strict=False)
            except msgspec.ValidationError as error:
                choices = typing.get_args(types[key]) if typing.get_origin(types[key]) is typing.Literal else ()
                wanted = f"expected {' or '.join(map(str, choices))}" if choices else error
                errors.append(f"{_name(here)} = {value!r}{line}: {wanted}")
        try:
            return replace(section, **changed)
        except UsageError as error:  # of a dataclass that checks itself
            errors.append(f"{_name(path) or 'settings'}: {error}")
            return section

    settings: T = merged(defaults, document, ())
    if errors:
        raise UsageError("\n  ".join([f"{where}:", *errors]) if len(errors) > 1 else f"{where}: {errors[0]}")
    return settings


def checked(settings: T) -> T:
    """Settings that were made in Python, looked at as those of a file, with whole paths.

    Raises:
        UsageError: all values that are not allowed.
    """
    return located(changed_by(settings, _document(settings), "settings"))


def located(settings: T) -> T:
    """The same settings with whole paths; relative ones start where one works."""
    document = _document(settings)
    for keys, place in _places(settings):
        _locate(document, keys, place, Path.cwd())
    return changed_by(settings, document, "settings")


def keys_of(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys of every setting, and its value."""
    for name in _fields(settings):
        value = getattr(settings, name)
        if _is_settings(value):
            yield from keys_of(value, (*path, name))
        else:
            yield (*path, name), value


def part_of(settings: Any, kind: type[T]) -> T:
    """The settings of a dataclass that ``settings`` extends, alone."""
    return kind(**{name: getattr(settings, name) for name in _fields(kind)})


def settings_toml(settings: Any) -> str:
    """All settings as TOML that :func:`read_settings` takes; None is left out, which is what it means."""
    return tomli_w.dumps(_document(settings), multiline_strings=False)


def explained_toml(settings: Any, path: tuple[str, ...] = ()) -> str:
    """The same with what each setting means as a comment above it."""
    about = explanations(type(settings))
    values = {name: msgspec.to_builtins(getattr(settings, name)) for name in _fields(settings)}
    lines, tables = ([f"[{_name(path)}]"] if path else []), list[str]()
    for name in _fields(settings):
        comment = [f"# {line}" for line in about.get(name, "").replace("``", "").splitlines()]
        if _is_settings(getattr(settings, name)):
            tables += ["", *comment, explained_toml(getattr(settings, name), (*path, name))]
        elif isinstance(values[name], dict) or _is_of_tables(values[name]):
            nested = {name: _without_none(values[name])}
            for key in reversed(path):
                nested = {key: nested}
            tables += ["", *comment, tomli_w.dumps(nested).rstrip()]
        elif values[name] is None:
            lines += [*comment, f"# {name} ="]
        else:
            lines += [*comment, _on_one_line({name: values[name]})]
    return "\n".join([*lines, *tables])


def _is_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, dict) for item in value)


def _on_one_line(document: dict[str, Any]) -> str:
    first, *items = tomli_w.dumps(document).rstrip().splitlines()
    return first if not items else first + " ".join(item.strip() for item in items).replace(", ]", "]")


def explanations(kind: type) -> dict[str, str]:
    """Descriptions of fields: of the ``Attributes`` of a dataclass and of those it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        _, _, text = inspect.cleandoc(one.__dict__.get("__doc__") or "").partition("Attributes:\n")
        text = re.split(r"\n(?=\S)", text)[0]
        for entry in re.split(r"\n(?= {4}\S)", text.rstrip()):
            names, sign, meaning = entry.partition(":")
            if sign:
                words = "\n".join(line.strip() for line in meaning.strip().splitlines())
                found |= {name.strip(): words for name in names.split(",")}
    return found


def _text(path: Path, where: str) -> str:
    try:
        return read_file(path, _MAX_BYTES, "a TOML file of settings", UsageError).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: expected text in UTF-8") from None


def _put(document: dict[str, Any], change: str) -> None:
    name, sign, text = change.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not sign or not all(keys):
        raise UsageError(f"--set {change}: expected section.key=value, such as recipe.epochs=12")
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


def _nearest(key: str, known: Sequence[str], everywhere: Sequence[tuple[str, ...]]) -> str:
    """The setting that an unknown key may mean: of the same table, or of that name in another one."""
    elsewhere = [_name(keys) for keys in everywhere if keys[-1] == key]
    near = elsewhere or get_close_matches(key, known, 1, _ALIKE)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"


def _places(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Place]]:
    """The keys of every setting that is a path."""
    types = typing.get_type_hints(type(settings), include_extras=True)
    for name in _fields(settings):
        if _is_settings(getattr(settings, name)):
            yield from _places(getattr(settings, name), (*path, name))
        for mark in getattr(types[name], "__metadata__", ()):
            if isinstance(mark, Place):
                yield (*path, name), mark


def _locate(document: Any, keys: Sequence[str], place: Place, base: Path) -> None:
    """Makes one path of a document whole; what is not text is left for the check."""
    for key in keys[:-1]:
        document = document.get(key) if isinstance(document, dict) else None
    value = document.get(keys[-1]) if isinstance(document, dict) else None
    if isinstance(value, str) and value not in place.words and not value.startswith(place.prefixes):
        document[keys[-1]] = str((base / value).resolve())


def _fields(settings: Any) -> tuple[str, ...]:
    if isinstance(settings, msgspec.Struct):
        return settings.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(settings) if "derived" not in field.metadata)


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


def _document(settings: Any) -> dict[str, Any]:
    """What is set, as nested tables; None is left out."""
    values = {name: getattr(settings, name) for name in _fields(settings)}
    return {
        name: _document(value) if _is_settings(value) else _without_none(msgspec.to_builtins(value))
        for name, value in values.items()
        if value is not None
    }


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def flat(settings: Mapping[str, Any], whole: Collection[str] = (), path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings one by one, each with its full name, as ``recipe.epochs``.

    Args:
        whole: names of settings that are tables themselves, which stay in one piece.
        path: before all names.
    """
    for name, value in settings.items():
        if isinstance(value, dict) and name not in whole:
            yield from flat(value, whole, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
