"""The packer and the audit: what they promise is read back from the bytes they wrote."""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "android_demo"
sys.path.insert(0, str(DEMO / "tools"))

import audit_apk
import build_apk
import build_native
import catalog
import desktop_runtime
import results
from catalog import DemoError, versions


def elf(alignment, bits=2):
    """The smallest 64-bit library with one loaded segment."""
    header = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    header += struct.pack("<2HI3QI6H", 3, 183, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<2I6Q", 1, 5, 0, 0, 0, 120, 120, alignment)


def packed(tmp_path, *files):
    build_apk.pack(list(files), tmp_path / "a.zip")
    return (tmp_path / "a.zip").read_bytes()


def test_stored_libraries_begin_on_pages_of_16_kib_and_what_was_packed_comes_back(tmp_path):
    files = [("a.txt", b"text" * 99, False), ("lib/x86_64/l.so", elf(16384), True), ("b.arsc", b"12345", True),
             ("ü.bin", b"", True), ("lib/arm64-v8a/l.so", elf(16384), True)]  # fmt: skip
    content = packed(tmp_path, *files)
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        assert package.testzip() is None
        assert {name: package.read(name) for name in package.namelist()} == {name: body for name, body, _ in files}
        assert not list(audit_apk._alignment(package, content, unpacked=False))
    assert content == packed(tmp_path, *files)


def test_a_library_off_its_page_is_told(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as package:
        package.writestr("lib/x86_64/l.so", elf(16384))
        package.writestr(zipfile.ZipInfo("resources.arsc"), b"x", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(buffer) as package:
        told = "; ".join(audit_apk._alignment(package, buffer.getvalue(), unpacked=False))
    assert "l.so begins at" in told
    assert "resources.arsc is compressed" in told


@pytest.mark.parametrize(("library", "told"), [
    (elf(4096), "aligned to 4096"), (elf(16384, bits=1), "aligned to 0"), (b"no library", "aligned to 0"),
    (elf(16384), ""),
])  # fmt: skip
def test_a_library_for_small_pages_is_told(tmp_path, library, told):
    content = packed(tmp_path, ("lib/arm64-v8a/libonnxruntime.so", library, True))
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        found = "; ".join(line for line in audit_apk._libraries(package, ["arm64-v8a"]) if "is missing" not in line)
        assert told in found
        assert bool(told) == bool(found)
        assert any("x86_64" in line for line in audit_apk._libraries(package, build_apk.ABIS))


@pytest.mark.parametrize("library", [b"no library", elf(16384, bits=1), elf(16384)])
def test_a_library_that_cannot_be_made_loadable_is_refused(library):
    with pytest.raises(DemoError, match="table of sections"):
        desktop_runtime.loadable(library)


def test_a_compressed_library_that_nobody_unpacks_is_told(tmp_path):
    content = packed(tmp_path, ("lib/arm64-v8a/l.so", elf(16384), False))
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        assert not list(audit_apk._alignment(package, content, unpacked=True))
        [told] = audit_apk._alignment(package, content, unpacked=False)
    assert "is compressed, so it cannot be loaded from where it is" in told


def test_a_library_of_another_abi_than_asked_for_is_told(tmp_path):
    libraries = [(f"lib/{abi}/{name}", elf(16384), True) for abi in build_apk.ABIS for name in audit_apk.LIBRARIES]
    packed(tmp_path, *libraries)
    with zipfile.ZipFile(tmp_path / "a.zip") as package:
        assert not list(audit_apk._libraries(package, build_apk.ABIS))
        told = list(audit_apk._libraries(package, ["arm64-v8a"]))
    assert [line.split(" ", 1)[1] for line in told] == ["is for an ABI that was not asked for"] * 2
    assert all("x86_64" in line for line in told)


@pytest.fixture(scope="module")
def native_heads(tmp_path_factory):
    """The native head for each ABI, as bytes."""
    for tool in ("clang", "ld.lld", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing; Debian: apt install clang lld default-jdk-headless")
    folder = tmp_path_factory.mktemp("native")
    return {abi: build_native.compile_for_android(abi, folder / abi / build_native.NAME).read_bytes()
            for abi in build_apk.ABIS}  # fmt: skip


def native_head_lines(tmp_path, libraries):
    """What the audit says of native heads in an APK."""
    content = packed(tmp_path, *((f"lib/{abi}/{build_native.NAME}", body, True) for abi, body in libraries.items()))
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        found = [*audit_apk._native_heads(package, build_apk.ABIS), *audit_apk._libraries(package, build_apk.ABIS),
                 *audit_apk._alignment(package, content, unpacked=False)]  # fmt: skip
    return [line for line in found if "libonnxruntime" not in line]


def test_the_native_head_is_built_for_both_kinds_of_processor(native_heads, tmp_path):
    assert len(build_native.jni_functions()) == 14
    assert native_head_lines(tmp_path, native_heads) == []


def test_a_native_head_that_no_device_could_load_is_told(native_heads, tmp_path):
    arm, intel = native_heads.values()
    swapped = native_head_lines(tmp_path, {"arm64-v8a": intel, "x86_64": arm})
    assert [line.split("/", 2)[2] for line in swapped] == [f"{build_native.NAME} is for another processor"] * 2
    [missing] = native_head_lines(tmp_path, {"arm64-v8a": arm})
    assert missing == f"lib/x86_64/{build_native.NAME} is missing; it is there for arm64-v8a"
    renamed = arm.replace(b"NativeHead_bind\0", b"NativeHead_bond\0").replace(b"\0calloc\0", b"\0malloc\0")
    lacks, needs = native_head_lines(tmp_path, {"arm64-v8a": renamed, "x86_64": intel})
    assert lacks.endswith(" lacks Java_refocus_recognizer_NativeHead_bind")
    assert " needs malloc, expected nothing but calloc, " in needs
    small = bytearray(arm)
    table, size, count = struct.unpack_from("<Q", arm, 32)[0], *struct.unpack_from("<2H", arm, 54)
    for header in range(table, table + size * count, size):
        struct.pack_into("<Q", small, header + 48, 4096)
    [aligned] = native_head_lines(tmp_path, {"arm64-v8a": bytes(small), "x86_64": intel})
    assert "segments aligned to 4096 bytes" in aligned
    [unreadable] = native_head_lines(tmp_path, {"arm64-v8a": elf(16384), "x86_64": intel})
    assert "not a 64-bit ELF library with a table of sections" in unreadable


def test_a_runtime_that_reports_home_is_told(tmp_path):
    for word in audit_apk.TELEMETRY:
        content = packed(tmp_path, ("lib/arm64-v8a/libonnxruntime.so", elf(16384) + b"..." + word, True))
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            assert len(list(audit_apk._telemetry(package))) == 1


@pytest.mark.parametrize(("version", "code", "told"), [
    ("1.26.0", b"", True), ("1.26.0", b"mlas.disable_kleidiai", False), ("1.27.1", b"", True), ("1.28.0", b"", False),
    ("1.23.2", b"", False), ("1.24.4", b"mlas.disable_kleidiai", True),
])  # fmt: skip
def test_a_runtime_with_known_errors_is_told_unless_the_app_steps_around_them(tmp_path, version, code, told):
    library = elf(16384) + f"\0VERS_{version}\0".encode()
    packed(tmp_path, ("lib/arm64-v8a/libonnxruntime.so", library, True), ("classes.dex", b"dex" + code, False))
    with zipfile.ZipFile(tmp_path / "a.zip") as package:
        assert bool(list(audit_apk._known_errors(package))) == told


def test_a_model_that_is_not_the_manifests_is_told(tmp_path, bundle):
    packed(tmp_path, ("assets/bundle.zip", build_apk.bundle_zip(bundle.folder), False))
    with zipfile.ZipFile(tmp_path / "a.zip") as package:
        assert not list(audit_apk._bundle(package))
    other = shutil.copytree(bundle.folder, tmp_path / "other")
    file = other / bundle.artifact("encoder", "onnxruntime").file
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    packed(tmp_path, ("assets/bundle.zip", build_apk.bundle_zip(other), False))
    with zipfile.ZipFile(tmp_path / "a.zip") as package:
        assert "is not what the manifest names" in next(audit_apk._bundle(package))


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(DemoError, match=r"no manifest\.json"):
        build_apk.bundle_zip(tmp_path)


def test_an_archive_without_the_libraries_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.aar", "w") as archive:
        archive.writestr("jni/arm64-v8a/libonnxruntime.so", elf(16384))
    with pytest.raises(DemoError, match="lacks libraries"):
        build_apk._libraries(tmp_path / "a.aar", build_apk.ABIS, "1.26.0")


@pytest.mark.parametrize(("inside", "told"), [(b"\0VERS_1.29.0\0", "is of ONNX Runtime 1.29.0"), (b"", "no version")])
def test_libraries_of_another_version_than_the_classes_are_refused(tmp_path, inside, told):
    with zipfile.ZipFile(tmp_path / "a.aar", "w") as archive:
        for library in audit_apk.LIBRARIES:
            archive.writestr(f"jni/arm64-v8a/{library}", elf(16384) + inside)
    with pytest.raises(DemoError, match=told):
        build_apk._libraries(tmp_path / "a.aar", ["arm64-v8a"], "1.26.0")


def test_an_archive_of_other_bytes_than_those_that_were_looked_at_is_not_used(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (tmp_path / "package/Plugins/Android").mkdir(parents=True)
    (tmp_path / "package/package.json").write_text('{"name": "changed", "version": "1.0.0"}')
    (tmp_path / "package/Plugins/Android/onnxruntime.aar").write_bytes(b"something else")
    monkeypatch.setattr(catalog, "_CACHE", tmp_path / "cache")
    with pytest.raises(DemoError, match=r"expected 09c0780a.*: not used"):
        catalog.npm_runtime(str(tmp_path / "package"))
    assert not (tmp_path / "cache").exists()


def test_maven_and_gradle_have_the_same_versions_and_none_with_telemetry():
    wanted, pom = versions(), (DEMO / "pom.xml").read_text()
    for name in ("onnxruntime", "junit", "robolectric", "androidAll"):
        assert f"<{name}.version>{wanted[name]}</{name}.version>" in pom
    assert tuple(int(part) for part in wanted["onnxruntime"].split(".")[:2]) < (1, 29)


def test_both_languages_say_everything_with_the_same_gaps():
    def strings(folder):
        text = (DEMO / "app/src/main/res" / folder / "strings.xml").read_text(encoding="utf-8")
        found = re.findall(r'<(?:string|item) (?:name|quantity)="(\w+)">(.*?)</', text)
        return {name: sorted(re.findall(r"%\d?\$?[ds]", value)) for name, value in found}

    assert strings("values") == strings("values-de")


def test_nothing_goes_to_another_device():
    """Android compares paths within each domain, so that every domain has to be named."""
    import xml.etree.ElementTree as ET

    stored = {"root", "file", "database", "sharedpref", "external"}
    stored |= {f"device_{name}" for name in stored - {"external"}}
    rules = ET.parse(DEMO / "app/src/main/res/xml/data_extraction_rules.xml").getroot()
    assert {section.tag for section in rules} == {"cloud-backup", "device-transfer"}
    for section in rules:
        assert {(rule.tag, rule.get("domain"), rule.get("path")) for rule in section} == {
            ("exclude", domain, ".") for domain in stored
        }


def test_a_bundle_is_prepared_with_names(bundle, tmp_path, capsys):
    from prepare_bundle import main

    from refocus.edge.bundle.load import load_bundle

    labels = bundle.manifest.heads[0].labels
    (tmp_path / "de.txt").write_text("\n".join(f"ä {label}" for label in labels), encoding="utf-8")
    assert main([str(bundle.folder), str(tmp_path / "out"), "--names", f"de={tmp_path / 'de.txt'}"]) == 0
    assert f"iciia_t: {len(labels)} names for de" in capsys.readouterr().out
    head = load_bundle(tmp_path / "out").manifest.heads[0]
    assert head.training["label_names"]["de"] == [f"ä {label}" for label in labels]


def test_names_that_are_not_one_for_each_label_and_a_folder_that_is_there_are_refused(bundle, tmp_path, capsys):
    from prepare_bundle import main

    (tmp_path / "de.txt").write_text("nur einer", encoding="utf-8")
    assert main([str(bundle.folder), str(tmp_path / "out"), "--names", f"de={tmp_path / 'de.txt'}"]) == 1
    assert "has 1 names, the model has 189 labels" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([str(bundle.folder), str(tmp_path), "--names", "de"]) == 1
    assert "expected LANGUAGE=FILE" in capsys.readouterr().err
    (tmp_path / "de.txt").write_text("name\n" * 189, encoding="utf-8")
    assert main([str(bundle.folder), str(tmp_path), "--names", f"de={tmp_path / 'de.txt'}"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_documents_of_the_tools_are_sections_of_the_results_page(tmp_path):
    """The page says what the documents say, and what a start costs is judged by its figures."""
    import json

    from screens import start_document

    from studies.report.results_page import results_pages
    from studies.report.sections import ANDROID_SCHEMA

    assert results.SCHEMA == ANDROID_SCHEMA
    folder = tmp_path / "results"
    measured = {"photos": 4096, "bundle": "b", "bundle_sha256": "0", "java": "17", "cached_ms": [420.0, 100.0, 80.0],
                "answering_twice_ms": [2100.0, 1000.0, 1600.0], "pictures_ms": [9.0, 7.0, 8.0]}  # fmt: skip
    (tmp_path / "start.json").write_text(json.dumps(measured))
    said = start_document(tmp_path / "start.json", folder / "android-start.json", "python screens.py")
    assert "100 ms of processor time (the first 420 ms), 0.100 of" in said
    sides = [{"side": side, "median_ms": 2.0, "quartiles_ms": [1.0, 3.0]} for side in ("Java", "Python")]
    cost = {"bundle": "b", "bundle_sha256": "0", "pairs": 3, "same_labels": 3, "ratio": 0.8, "ratio_quartiles": [0.7, 0.9],
            "limit": 1.15}  # fmt: skip
    with_it = {"same_labels": 3, "ratio": 0.9, "ratio_quartiles": [0.85, 0.95]}
    to_stock = {"same_labels": 2, "ratio": 0.6, "ratio_quartiles": [0.5, 0.7]}
    cost["native"] = {"target": "native:fp32", **with_it, "to_stock": to_stock}
    results.write_document(folder / "android-cost.json", "android_cost", cost, sides, "python compare_cost.py")
    rows = [{"processor": "max", "entries": entries, "answers": 114, "same": same, "features": off, "passed": passed,
             "self_test_passed": passed} for entries, same, off, passed in (({"a": "1"}, 114, 2.2e-6, True),
                                                                             ({}, 40, 1.5, False))]  # fmt: skip
    about = {"bundle": "b", "bundle_sha256": "0", "library": "1.26.0"}
    results.write_document(folder / "android-processors.json", "android_processors", about, rows, "python emulate.py")
    page = results_pages(folder).text
    assert "Median 100 ms (the first start, which compiles, 420 ms), 0.100 of the 1600 ms with answering" in page
    assert "The goal of less than 300 ms is reached" in page
    assert "Java to Python: 0.800 (quartiles 0.700 and 0.900; at most 1.15 is allowed). 3 of 3 labels are equal" in page
    assert "With the head native:fp32 on both sides: 0.900 (quartiles 0.850 and 0.950), 3 labels equal." in page
    assert "Java with it to Java with the stock head: 0.600 (quartiles 0.500 and 0.700), 2 labels equal." in page
    assert "| max (with SME) | `a=1` | 114 of 114 | 2.2e-06 | passes |\n" in page
    assert "| max (with SME) | none | 40 of 114 | 1.5e+00 | refuses it |\n" in page
    assert {path.name for path in folder.iterdir()} == {f"android-{n}.json" for n in ("start", "cost", "processors")}


def test_no_screen_has_words_of_its_own():
    for layout in (DEMO / "app/src/main/res/layout").glob("*.xml"):
        for value in re.findall(r'android:(?:text|contentDescription|hint)="([^"]*)"', layout.read_text()):
            assert value.startswith("@string/"), f"{layout.name}: {value}"


def need_tools():
    tools = [
        tool
        for tool in ("mvn", "aapt2", "apksigner", "dexdump", "javac", "clang", "ld.lld")
        if shutil.which(tool) is None
    ]
    if tools:
        pytest.skip(
            f"{', '.join(tools)} missing; Debian: apt install maven aapt apksigner dexdump clang lld android-framework-res"
        )


@pytest.mark.slow
def test_an_apk_is_built_twice_alike_and_passes_the_audit(bundle, tmp_path):
    """Without the runtime's Android archive, which not every mirror of Maven Central has."""
    need_tools()
    made = []
    for name in ("a", "b"):
        command = [sys.executable, DEMO / "tools/build_apk.py", "--without-runtime", "--bundle", bundle.folder,
                   "--out", tmp_path / f"{name}.apk", "--key", tmp_path / "key"]  # fmt: skip
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1500)
        if "Maven cannot get" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        made.append((tmp_path / f"{name}.apk").read_bytes())
    assert made[0] == made[1]
    audit = [sys.executable, str(DEMO / "tools/audit_apk.py"), str(tmp_path / "a.apk")]
    done = subprocess.run([*audit, "--without-runtime"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, "nothing wrong" in done.stdout) == (0, True), done.stdout + done.stderr
    done = subprocess.run(audit, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "libonnxruntime.so is missing" in done.stdout


@pytest.mark.slow
def test_an_apk_for_both_kinds_of_processor_passes_the_audit_and_is_not_too_large(bundle, tmp_path, capsys):
    """With Android's own libraries of ONNX Runtime: what `make demo-android` makes."""
    need_tools()
    try:
        runtime = catalog.android_runtime(versions())
    except DemoError as error:
        pytest.skip(str(error))
    apk = build_apk.build(tmp_path / "a.apk", bundle.folder, runtime, False, tmp_path / "key")
    with zipfile.ZipFile(apk) as package:
        sizes = {entry.filename: entry.file_size for entry in package.infolist() if entry.filename.endswith(".so")}
    names = (*audit_apk.LIBRARIES, build_native.NAME)
    assert set(sizes) == {f"lib/{abi}/{name}" for abi in build_apk.ABIS for name in names}
    assert sum(sizes.values()) > 40_000_000  # stored, they alone would be too much
    assert audit_apk.main([str(apk)]) == 0, capsys.readouterr().out
    one = build_apk.build(tmp_path / "one.apk", bundle.folder, runtime, False, tmp_path / "key", ["arm64-v8a"])
    assert audit_apk.main([str(one), "--abi", "arm64-v8a"]) == 0, capsys.readouterr().out
    again = build_apk.build(tmp_path / "again.apk", bundle.folder, runtime, False, tmp_path / "key")
    assert again.read_bytes() == apk.read_bytes()
