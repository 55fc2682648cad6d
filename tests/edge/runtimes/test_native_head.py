"""The native head agrees with a reference in numpy on every instruction set, and refuses what it cannot run."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pytest
import torch

from refocus.edge.bundle import encode_tensors
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes import NativeConfig
from refocus.edge.runtimes.base import Source
from refocus.edge.runtimes.native_library import LIBRARY, NativeLibrary
from refocus.export.program import signature
from refocus.export.targets.native import pack
from tests.edge.runtimes import native_fuzz
from tests.edge.runtimes.native_builds import DRIVER, SHARES, SOURCE, build, sanitized, start_fuzz
from tests.edge.runtimes.native_reference import (
    answer,
    artifact_of,
    difference,
    furthest,
    random_case,
    source_of,
)

native = pytest.importorskip("refocus.edge.runtimes.native", exc_type=RuntimeUnavailable)


@pytest.fixture
def case():
    rng = np.random.default_rng(7)
    config = NativeConfig(1, 1, 48, 12, 16, 2, 4, 5, 8, 17, 5, 8, 0, 3, 0, 0)
    return random_case(config, rng, length=6)


def test_random_heads_agree_with_the_reference_on_every_instruction_set():
    assert native_fuzz.run(LIBRARY, range(10_000, 10_060)) == []


@pytest.mark.parametrize("precision", [0, 1, 2])
@pytest.mark.parametrize("form", [0, 1])
def test_a_head_of_real_size_agrees_with_the_reference_at_every_length(form, precision):
    rng = np.random.default_rng(1)
    rows = 45 if form else 15
    config = NativeConfig(1, form, 1280, 12, 256, 3, 4, 16, rows, 200, 32, 64, 0, 1 + 2 * form, precision, 0)
    given = random_case(config, rng)
    program = native.Loaded(source_of(given))
    for length in (0, 1, 14, 15, 16, rows, 10_000, -1):
        given.inputs["history_length"][0] = length
        assert difference(given, program.run(**given.inputs)) < 5e-5


def test_an_answer_does_not_depend_on_slots_that_hold_no_photo(case):
    case.inputs["history_length"][0] = 2
    before = native.Loaded(source_of(case)).run(**case.inputs)
    for name in ("keys_0", "values_1"):
        case.inputs[name][:, 2:] = np.nan
    case.inputs["traits"][2:] = np.nan
    after = native.Loaded(source_of(case)).run(**case.inputs)
    assert all(np.array_equal(before[name], value) for name, value in after.items())


def test_without_a_history_the_answer_is_the_plain_one(case):
    case.inputs["history_length"][0] = 0
    found = native.Loaded(source_of(case)).run(**case.inputs)
    plain = found["plain_logits"][0] - found["plain_logits"].max()
    assert found["trust"][0] == 0
    np.testing.assert_allclose(found["logits"][0], plain - np.log(np.exp(plain).sum()), atol=1e-6)


def test_not_a_number_comes_out_as_such_and_writes_nothing_else(case):
    case.inputs["feature"][:] = np.nan
    found = native.Loaded(source_of(case)).run(**case.inputs)
    assert np.isnan(found["logits"]).all()


def test_a_bound_run_reads_and_writes_the_callers_memory(case):
    program = native.Loaded(source_of(case))
    run = program.bind(case.inputs)
    first = run()["logits"].copy()
    case.inputs["feature"][:] *= -1
    assert not np.allclose(run()["logits"], first)
    assert difference(case, run()) < 5e-5
    program.close()
    with pytest.raises(ValueError, match="was closed"):
        run()


def test_inputs_that_are_no_rows_of_memory_are_copied_first(case):
    program, wanted = native.Loaded(source_of(case)), answer(case)["logits"]
    case.inputs["keys_0"] = np.moveaxis(np.moveaxis(case.inputs["keys_0"], 1, 0).copy(), 0, 1)
    assert not case.inputs["keys_0"].flags.c_contiguous
    for run in (program.bind(case.inputs), lambda: program.run(**case.inputs)):
        np.testing.assert_allclose(run()["logits"], wanted, atol=1e-4)


def test_threads_share_one_program(case):
    program, wanted, wrong = native.Loaded(source_of(case)), {}, []
    given = []
    for number in range(4):
        inputs = {name: value.copy() for name, value in case.inputs.items()}
        inputs["feature"][:] += number
        given.append(inputs)
        wanted[number] = program.run(**inputs)["logits"]

    def work(number):
        for _ in range(200):
            wrong.extend([number] * (not np.array_equal(program.run(**given[number])["logits"], wanted[number])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def changed(case, **tensors):
    """The head's file with other tensors; None leaves one out."""
    found = {**pack(case.config, case.tensors).tensors(), **tensors}
    content = b"".join(encode_tensors({name: value for name, value in found.items() if value is not None}))
    return Source({"": content}, artifact_of(case.config))


def test_a_damaged_weight_file_is_refused_before_it_is_used(case):
    whole = source_of(case).file("")
    floats, config = pack(case.config, case.tensors).floats, np.array(case.config)
    for cut in (0, 7, 100, len(whole) - 1):
        with pytest.raises(BundleError, match="holds no tensors"):
            native.Loaded(Source({"": whole[:cut]}, artifact_of(case.config)))
    for tensors, said in (
        ({"floats": floats[:-1]}, f"has .*{len(floats) - 1}.* numbers .* has .*{len(floats)}"),
        ({"floats": np.append(floats, np.float32(0))}, "export the bundle again"),
        ({"int8": np.zeros(1, np.int8)}, "export the bundle again"),
        ({"floats": None}, "tensor floats is"),
        ({"floats": floats.astype(np.float16)}, "tensor floats is float16"),
        ({"int16": np.zeros((2, 3), np.int8)}, "tensor int16 is int8"),
        ({"config": config[:-1]}, "tensor config is int64"),
        ({"config": config * 0 + 2}, "version 2 of the native head's layout, this refocus reads 1; update refocus"),
        ({"config": config * 0}, "version 0 of the native head's layout.*export the bundle again"),
    ):
        with pytest.raises(BundleError, match=said):
            native.Loaded(changed(case, **tensors))


@pytest.mark.parametrize("member", NativeConfig._fields[1:])
@pytest.mark.parametrize("value", [-1, 0, 1, 3, 2**31, 2**62])
def test_another_configuration_is_refused_or_answers_what_the_manifest_says(case, member, value):
    """Every member decides how much is read: none may be other than the numbers and the manifest allow."""
    config = case.config._replace(**{member: value})
    if config == case.config:
        return
    try:
        program = native.Loaded(changed(case, config=np.array(config)))
    except BundleError as error:
        assert "export the bundle again" in str(error)  # noqa: PT017  # or it is none
        return
    # They change no size, or one that is rounded up to the same.
    assert member in ("classifier", "flags", "heads", "window", "form", "warm_up", "hidden")
    assert np.isfinite(program.run(**case.inputs)["logits"]).all()


def test_weights_of_another_shape_than_the_manifest_says_are_refused(case):
    other = artifact_of(case.config._replace(classes=16))
    with pytest.raises(BundleError, match="gives .*17.* its manifest says .*16"):
        native.Loaded(Source(source_of(case).files, other))


def test_an_instruction_set_that_is_not_there_is_refused(case):
    with pytest.raises(RuntimeUnavailable, match="--provider avx9: the native head runs with .* on this processor"):
        native.Loaded(source_of(case, "avx9"))


def test_a_library_that_is_missing_or_no_library_or_of_another_version_is_refused(tmp_path):
    with pytest.raises(RuntimeUnavailable, match="was not built .* C compiler"):
        NativeLibrary(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(RuntimeUnavailable, match="cannot be used"):
        NativeLibrary(tmp_path / "text.so")
    if shutil.which("gcc"):
        other = tmp_path / "head.c"
        other.write_text(
            "int refocus_version(void) { return 9; }\nint refocus_variant(void) { return 0; }\nint refocus_head_run(void)"
            " { return 0; }\nint refocus_head_sizes(void) { return 0; }\nvoid refocus_variant_name(void) {}\nvoid"
            " refocus_photo_signature(void) {}\n"
        )
        library = build("gcc", tmp_path / "other.so", ["-shared", "-fPIC"], [other])
        with pytest.raises(RuntimeUnavailable, match="has version 9, this refocus needs 1"):
            NativeLibrary(library)


@pytest.mark.parametrize("side", [2, 17, 56, 64, 112, 224])
def test_the_signature_of_a_photo_is_that_of_training(side):
    photo = torch.randn((1, 3, side, side), generator=torch.Generator().manual_seed(side)) + 0.5
    found = NativeLibrary().signature(photo[0].numpy())
    np.testing.assert_allclose(found, signature(photo.double())[0].numpy(), atol=1e-5)


@pytest.mark.slow
def test_hundreds_of_random_heads_pass_the_sanitizers(tmp_path):
    """``make fuzz-native`` tries 100,000."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    fuzz = start_fuzz(sanitized(tmp_path), 0, 300)
    said, _ = fuzz.communicate()
    assert fuzz.returncode == 0, said[-4000:]


@pytest.mark.slow
def test_the_sanitizers_see_a_stream_that_is_too_short(tmp_path):
    """The test above could not fail otherwise."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    text = SOURCE.read_text()
    assert "sizes->scratch = photos" in text
    for file in ("head.h", "run.inc"):
        shutil.copy(SOURCE.with_name(file), tmp_path)
    (tmp_path / "head.c").write_text(text.replace("sizes->scratch = photos", "sizes->scratch = -4 + photos"))
    flags = ["-shared", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
    fuzz = start_fuzz(build("gcc", tmp_path / "wrong.so", flags, [tmp_path / "head.c", SHARES]), 0, 50)
    said, _ = fuzz.communicate()
    assert "heap-buffer-overflow" in said


@pytest.mark.slow
def test_arm64_answers_as_the_reference(tmp_path):
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
    if not compiler or not emulator:
        pytest.skip("there is no compiler for arm64, or no emulator")
    driver = build(compiler, tmp_path / "driver", ["-static", "-O2"], [SOURCE, DRIVER])
    assert furthest([emulator, driver], 300) < 5e-5
