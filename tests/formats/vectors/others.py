"""Tensor files, channels and profiles of the Android library."""

from __future__ import annotations

import base64
import json
import struct
import tarfile
import zlib
from typing import Any

from pieces import HERE, NUMBER, SPACE, Change, at, changed, tensor_file, text_of

# ---- tensor files


def tensor_vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def one(name: str, content: bytes, valid: bool, rule: str) -> None:
        found.append({"name": name, "rule": rule, "valid": valid, "base64": base64.b64encode(content).decode()})

    def raw(header: Any, content: bytes = b"", pad: int = 64) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % pad)
        return struct.pack("<Q", len(text)) + text + content

    def place(begin: int, end: int, shape: list[Any], dtype: Any = "F32", **more: Any) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}

    types = {
        "b": ("I64", [1], bytes(8)),
        "a": ("F32", [2, 1], bytes(8)),
        "c": ("F16", [3], bytes(6)),
        "d": ("I8", [], b"\1"),
    }
    one("types", tensor_file(types), True, "four types, a scalar")
    one("metadata", tensor_file({"a": ("F32", [1], bytes(4))}, {"method": "pfedpg"}), True, "metadata")
    one(
        "no-numbers",
        tensor_file({"a": ("F32", [0, 5], b""), "b": ("F32", [1], bytes(4))}),
        True,
        "a tensor without numbers",
    )
    one("reversed", raw({"b": place(4, 8, [1]), "a": place(0, 4, [1])}, bytes(8)), True, "the header's order is free")
    one("thirty-two-axes", raw({"a": place(0, 4, [1] * 32)}, bytes(4)), True, "at most 32 axes")
    one("thirty-three-axes", raw({"a": place(0, 4, [1] * 33)}, bytes(4)), False, "at most 32 axes")
    wrong_headers(one, raw)
    wrong_places(one, raw, place)
    return found


def wrong_headers(one: Any, raw: Any) -> None:
    one("empty", b"", False, "a header")
    one("seven-bytes", b"\1\0\0\0\0\0\0", False, "a header")
    one("length-0", bytes(64), False, "a header of at least 1 byte")
    one("length-beyond", struct.pack("<Q", 100) + b"{}", False, "the header lies in the file")
    one("length-huge", struct.pack("<Q", 2**64 - 1) + b"{}" * 32, False, "a header of at most 1048576 bytes")
    one("length-negative", struct.pack("<q", -8) + b"{}" * 32, False, "a header of at most 1048576 bytes")
    one("no-json", raw(b"{"), False, "the header is JSON")
    one("array", raw([]), False, "the header is an object")
    one("not-utf-8", raw(b'{"\xff":1}'), False, "the header is JSON")


def wrong_places(one: Any, raw: Any, place: Any) -> None:
    one("gap", raw({"a": place(4, 8, [1])}, bytes(8)), False, "no gap")
    one("gap-between", raw({"a": place(0, 4, [1]), "b": place(8, 12, [1])}, bytes(12)), False, "no gap")
    one("overlap", raw({"a": place(0, 8, [2]), "b": place(4, 12, [2])}, bytes(12)), False, "no overlap")
    one("twice-the-same", raw({"a": place(0, 4, [1]), "b": place(0, 4, [1])}, bytes(4)), False, "no overlap")
    one("bytes-behind", raw({"a": place(0, 4, [1])}, bytes(5)), False, "no bytes behind the last tensor")
    one("bytes-missing", raw({"a": place(0, 4, [1])}, bytes(3)), False, "tensors lie in the file")
    one("shape", raw({"a": place(0, 4, [2])}, bytes(4)), False, "as many bytes as numbers")
    one("negative-shape", raw({"a": place(0, 4, [-1, -1])}, bytes(4)), False, "sizes are at least 0")
    one("negative-offsets", raw({"a": place(-4, 0, [1])}), False, "offsets are at least 0")
    one("named-axis", raw({"a": place(0, 4, ["batch"])}, bytes(4)), False, "sizes are whole numbers")
    one("fraction", raw({"a": place(0, 4, [1.0])}, bytes(4)), False, "sizes are whole numbers")
    one("huge", raw({"a": place(0, 4, [2**40, 2**40, 2**40])}, bytes(4)), False, "as many bytes as numbers")
    one("wraps-around", raw({"a": place(0, 0, [2**32, 2**32])}), False, "as many bytes as numbers")
    one("type", raw({"a": place(0, 4, [1], "BF16")}, bytes(4)), False, "four types")
    one("type-null", raw({"a": place(0, 4, [1], None)}, bytes(4)), False, "four types")
    one(
        "three-offsets",
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
        False,
        "two offsets",
    )
    one("no-shape", raw({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), False, "three members")
    one("more-members", raw({"a": place(0, 4, [1], device="gpu")}, bytes(4)), False, "three members")
    one(
        "unaligned",
        raw(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} ', bytes(4), 1),
        False,
        "tensors are aligned",
    )
    one(
        "name-twice",
        raw(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        False,
        "each member once",
    )
    one(
        "metadata-numbers",
        raw({"__metadata__": {"a": 1}, "a": place(0, 4, [1])}, bytes(4)),
        False,
        "metadata are strings",
    )
    one("metadata-array", raw({"__metadata__": [], "a": place(0, 4, [1])}, bytes(4)), False, "metadata are an object")


# ---- channels


def channel_vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    release = {
        "number": 1, "name": "example", "manifest_schema": NUMBER, "min_refocus": "0.2.0", "percent": 100,
        "published": "2090-01-01T00:00:00Z", "files": [{"path": "manifest.json", "sha256": SPACE, "size_bytes": 9}],
        "programs": [{"target": "onnxruntime:fp32", "min_version": "1.20", "feature_space": SPACE}],
    }  # fmt: skip
    base = {"device_class": "phone", "serial": 3, "schema_version": 2, "releases": [release]}

    def one(name: str, rule: str, valid: bool, change: Change, **more: Any) -> None:
        document, _ = changed(base, change)
        found.append(
            {
                "name": name,
                "rule": rule,
                "valid": valid,
                "base64": base64.b64encode(text_of(document).encode()).decode(),
                **more,
            }
        )

    taken, left = {"taken": [1]}, {"taken": []}
    one("plain", "a channel of number 2", True, at("serial", 4), **taken)
    one("number-1", "a channel of number 1", True, at("schema_version", 1), **taken)
    one("empty", "no releases", True, at("releases", []), **left)
    one("manifest-5", "manifest numbers 5 and 6 are read", True, at("releases.0.manifest_schema", 5), **taken)
    one("manifest-7", "a manifest number that is not read", True, at("releases.0.manifest_schema", 7), **left)
    one("withdrawn", "a withdrawn release is not taken", True, at("releases.0.withdrawn", "it hurts"), **left)
    one("unknown-anywhere", "unknown fields are ignored", True, lambda document, _: (
        document.update(a=1), document["releases"][0].update(b={"c": []}),
        document["releases"][0]["files"][0].update(d=None), document["releases"][0]["programs"][0].update(e="")), **taken)  # fmt: skip
    one(
        "critical-known",
        "critical fields that are known",
        True,
        at("releases.0.critical", ["percent", "files.path", "programs.target"]),
        **taken,
    )
    for name in ("novelty", "files.novelty", "programs.novelty", "target"):
        one(f"critical-{name}", "a critical field that is not known", True, at("releases.0.critical", [name]), **left)
    one(
        "critical-of-channel",
        "a critical field of the channel that is known",
        True,
        at("critical", ["serial"]),
        **taken,
    )
    one(
        "critical-of-channel-unknown",
        "a critical field of the channel that is not known",
        False,
        at("critical", ["novelty"]),
    )
    one(
        "critical-in-number-1",
        "number 1 has no critical",
        False,
        lambda document, _: document.update(schema_version=1, critical=["serial"]),
    )
    limits_of_channels(one, taken, release)
    for path, value in {
        "schema_version": 3, "schema_version.": "2", "serial": 0, "device_class": "Phone", "device_class.": "phone/..",
        "releases.0.number": 0, "releases.0.percent": 101, "releases.0.published": "yesterday", "releases.0.programs": [],
        "releases.0.files": [], "releases.0.files.0.path": "../manifest.json", "releases.0.files.0.sha256": "none",
        "releases.0.critical": "percent", "releases.0.withdrawn": None, "releases.0.name": ..., "serial.": ...,
        "releases": [release, release], "releases.": [{**release, "number": 2}, release],
    }.items():  # fmt: skip
        one(f"wrong-{path}-{len(found)}", "each field has its type and range", False, at(path.rstrip("."), value))
    return found


def limits_of_channels(one: Any, taken: dict[str, Any], release: dict[str, Any]) -> None:
    """The largest of what is accepted, and the smallest of what is not."""

    def files(*paths: str) -> Change:
        return at("releases.0.files", [{**release["files"][0], "path": path} for path in ("manifest.json", *paths)])

    one("limit-number", "number is at most 2147483647", True, at("releases.0.number", 2**31 - 1), taken=[2**31 - 1])
    one("limit-number-beyond", "number is at most 2147483647", False, at("releases.0.number", 2**31))
    one("limit-size", "a file has at most 4294967296 bytes", True, at("releases.0.files.0.size_bytes", 2**32), **taken)
    one(
        "limit-size-beyond",
        "a file has at most 4294967296 bytes",
        False,
        at("releases.0.files.0.size_bytes", 2**32 + 1),
    )
    one("limit-class", "device_class has at most 32 characters", True, at("device_class", "p" * 32), taken=[])
    for number, name in enumerate(("p" * 33, "", "-phone", "phone\n", "phöne", "phone_")):
        one(f"class-{number}", "what a device class is", False, at("device_class", name))
    for path in ("releases.0.name", "releases.0.withdrawn", "releases.0.programs.0.target"):
        for number, text in enumerate(("x" * 501, "a\nb", "a\u202eb", "a\x1b[31m", "a\u2028b")):
            one(f"text-{path}-{number}", "texts are at most 500 printable characters", False, at(path, text))
    one("limit-name", "a name has at most 500 characters", True, at("releases.0.name", "ä" * 500), **taken)
    one("files", "files in folders", True, files("a/b.bin", "a/c", "ab"), **taken)
    wrong = {"case": ("a/B", "A/b"), "folder": ("a", "a/b"), "folder-case": ("A", "a/b"), "twice": ("a", "a"),
             "part": ("a.part",), "part-of-folder": ("a.part/b",), "dot": ("./a",)}  # fmt: skip
    for name, paths in wrong.items():
        one(f"files-{name}", "paths are distinct on every file system, and none ends with .part", False, files(*paths))


# ---- profiles of the Android library


def android_vectors() -> list[dict[str, Any]]:
    def text(value: str) -> bytes:
        return struct.pack(">i", len(value.encode())) + value.encode()

    def record(kind: int, space: str, key: str, name: str, *numbers: float) -> bytes:
        content = struct.pack(">bq", kind, 0) + text(space) + text(key) + text(name) + struct.pack(">i", len(numbers))
        content += struct.pack(f"<{len(numbers)}f", *numbers)
        return struct.pack(">III", 0x7266C15D, len(content), zlib.crc32(content)) + content

    records = record(0, "s", "p", "a.jpg", 1.0, -2.5) + record(1, "", "p", "fox") + record(2, "", "theme", "dark")
    found = {f"number-{number}": (b"RefocusH" + struct.pack(">I", number) + records, True) for number in (1, 2)}
    found["half-a-record"] = (found["number-2"][0] + records[:20], True)
    classes = [2.0, 0.0, 0.5, 0.25, -1.5]
    likely = record(3, "s", "p", "c", *classes) + record(3, "s", "q", "c", 1.0, 0.5, 0.0)
    found["likely"] = (found["number-2"][0] + likely + record(3, "s", "p", "c", *[0.0] * 515), True)
    found["number-3"] = (b"RefocusH" + struct.pack(">I", 3) + records, False)
    found["another-file"] = (b"SQLite format 3\0", False)
    given = [{"name": name, "rule": "number, records, half a record at the end", "valid": valid, "photos": ["p"],
              "labels": {"p": "fox"}, "settings": {"theme": "dark"},
              "likely": classes if name == "likely" else None, "base64": base64.b64encode(content).decode()}
             for name, (content, valid) in found.items()]  # fmt: skip
    with tarfile.open(HERE.parents[1] / "fixtures" / "0.1.0" / "files.tar.gz") as archive:
        member = archive.extractfile("android/anna.history")
        assert member is not None
        old = base64.b64encode(member.read()).decode()
    given.append({"name": "release-0.1.0", "rule": "a file that release 0.1.0 wrote", "valid": True, "base64": old,
                  "photos": ["photo2", "photo3", "photo4"], "labels": {"photo4": "fox"},
                  "settings": {"theme": "dunkel: ä"}})  # fmt: skip
    return given
