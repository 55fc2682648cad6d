"""Attacks with signed bundles: somebody else's, an old one, one of another bank; what served before still serves."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.bundle.signed import Asked, new_request, pack, sign, sign_statement, unpack
from refocus.edge.errors import BundleError
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import Bank

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW, HOUR = 1_800_000_000, 3600
ANNA, BEN = "annas-request-0001", "bens-request-00001"


@pytest.fixture(scope="module")
def bank(bank_bundle):
    return Bank.open(bank_bundle.folder)


@pytest.fixture(scope="module")
def made(bank, tmp_path_factory):
    """Files of two people's bundles, as a service makes them, by name."""
    folder = tmp_path_factory.mktemp("made")
    for name, classes in (("anna", ["red fox", "grey fox"]), ("ben", ["lion", "lynx"])):
        done = bank.condense(bank.task(classes), folder / name, ["onnxruntime:fp32"])
        pack(Bundle(done.folder, done.manifest), folder / f"{name}.tar")
    return {name: folder / f"{name}.tar" for name in ("anna", "ben")}


@pytest.fixture
def device(made, bank, tmp_path):
    """A folder in which Anna's bundle serves; checks in the end that it still does."""
    out = tmp_path / "bundle"
    asked = Asked(ANNA, bank.card.sha256)
    unpack(made["anna"], sign_statement(made["anna"], KEY, asked, HOUR, NOW), KEY.public_key(), out, asked, NOW)
    before = load_bundle(out).manifest
    yield out
    assert load_bundle(out).manifest == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["bundle"], "nothing was left behind"
    photo = (bank.folder / bank.manifest.self_test_photos[0].file).read_bytes()
    with Recognizer(load_bundle(out)) as recognizer:
        assert set(recognizer.recognize(photo).labels[:2]) == {"red fox", "grey fox"}


def refused(file, signature, out, asked, words, now=NOW, key=KEY):
    with pytest.raises(BundleError, match=words):
        unpack(file, signature, key.public_key(), out, asked, now)


def test_a_bundle_that_answers_another_persons_request_is_refused(device, made, bank):
    for request in (BEN, ""):
        statement = sign_statement(made["ben"], KEY, Asked(request, bank.card.sha256), HOUR, NOW)
        refused(made["ben"], statement, device, Asked(ANNA), f"answers another request than '{ANNA}'.*ask again")
        refused(made["ben"], statement, device, Asked(""), "answers another request than ''")


def test_a_bundle_of_another_bank_is_refused(device, made, bank):
    other, mine = "0" * 64, bank.card.sha256
    statement = sign_statement(made["ben"], KEY, Asked(ANNA, mine), HOUR, NOW)
    refused(made["ben"], statement, device, Asked(ANNA, other), f"made from bank {mine[:12]}, expected 000000000000")
    lying = sign_statement(made["ben"], KEY, Asked(ANNA, other), HOUR, NOW)
    refused(made["ben"], lying, device, Asked(ANNA, other), "a bundle of another bank than its statement names")
    refused(made["ben"], lying, device, None, "a bundle of another bank than its statement names")


def test_a_bundle_of_another_time_is_refused(device, made, bank):
    asked = Asked(ANNA, bank.card.sha256)
    statement = sign_statement(made["ben"], KEY, asked, HOUR, NOW)
    for now in (NOW + HOUR + 1, NOW + 10 * HOUR, NOW - 301, 0):
        refused(made["ben"], statement, device, asked, "may be installed from .* check the clock", now)
        refused(made["ben"], statement, device, None, "may be installed from .* check the clock", now)


def test_a_statement_with_another_file_or_signed_by_others_is_refused(device, made, bank):
    asked = Asked(ANNA, bank.card.sha256)
    statement = sign_statement(made["anna"], KEY, asked, HOUR, NOW)
    refused(made["ben"], statement, device, asked, "is not the file that was signed")
    stranger = Ed25519PrivateKey.generate()
    refused(
        made["ben"], sign_statement(made["ben"], stranger, asked, HOUR, NOW), device, asked, "not signed by the key"
    )
    content, signed = statement.split(".")
    altered = content[:-1] + ("A" if content[-1] != "A" else "E")
    for spoilt in (f"{altered}.{signed}", f"{content}.", f".{signed}", f"{content}.{signed}.", ".", "", "ü.x",
                   f"{content}.{signed}=", f"{content} .{signed}", "a" * 5000 + ".b", f"{content}.{signed[:-2]}"):  # fmt: skip
        refused(made["anna"], spoilt, device, asked, "not signed by the key")


def test_a_signature_without_a_request_is_refused_where_one_was_made(device, made):
    refused(
        made["ben"], sign(made["ben"], KEY), device, Asked(ANNA), "signature of release 0.1.0, which names no request"
    )


def test_neither_signature_fits_as_the_other(device, made, bank):
    """One key signs both: what it signed as one kind must not verify as the other."""
    statement = sign_statement(made["ben"], KEY, Asked(ANNA, bank.card.sha256), HOUR, NOW)
    content, signed = statement.split(".")
    refused(made["ben"], f"{signed}==", device, None, "not signed by the key")
    refused(made["ben"], f"{content}.{sign(made['ben'], KEY).rstrip('=')}", device, None, "not signed by the key")


@pytest.mark.parametrize("field", ["person", "sha256", "expires", "bank"])
def test_a_statement_that_is_not_understood_is_refused(field, device, made, bank):
    """Signed by the right key all the same: a newer service's, with a restriction that this device does not know."""
    from refocus.edge.bundle.signed import _STATEMENT, _bytes, _text

    known = json.loads(_bytes(sign_statement(made["ben"], KEY, Asked(ANNA), HOUR, NOW).split(".")[0]))
    content = json.dumps(known | {field: "x\n"}).encode()
    refused(made["ben"], f"{_text(content)}.{_text(KEY.sign(_STATEMENT + content))}", device, Asked(ANNA),
            "is not understood .* update refocus")  # fmt: skip


def test_a_file_that_changes_after_it_was_verified_is_refused(device, made, bank, tmp_path, monkeypatch):
    from refocus.edge.bundle import signed as signed_bundle

    file = tmp_path / "answer.tar"
    shutil.copyfile(made["anna"], file)
    asked = Asked(ANNA, bank.card.sha256)
    statement, extract = sign_statement(file, KEY, asked, HOUR, NOW), signed_bundle._extract

    def swapped(*arguments):
        shutil.copyfile(made["ben"], file)
        return extract(*arguments)

    monkeypatch.setattr(signed_bundle, "_extract", swapped)
    refused(file, statement, device, asked, "it was changed while it was read")


def test_signed_files_that_are_no_archive_of_plain_files_are_one_clear_error(device, tmp_path):
    def tar(*members, form=tarfile.GNU_FORMAT):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=form) as archive:
            for name, size in members:
                member = tarfile.TarInfo(name)
                member.size = size
                archive.addfile(member, io.BytesIO(b"x" * size))
        return content.getvalue()

    whole = tar(("manifest.json", 2000))
    for number, content in enumerate((b"", b"x" * 5000, tar(), tar(("a", 1), ("a", 1)), tar(("a", 1), ("a/b", 1)),
                                      tar(("a" * 3000, 1)), tar(("a\0b", 1)), tar(("ä", 1), form=tarfile.PAX_FORMAT),
                                      whole[:700], whole[:400])):  # fmt: skip
        file = tmp_path / f"{number}.tar"
        file.write_bytes(content)
        refused(file, sign(file, KEY), device, None, "holds no bundle|is not a bundle")


@pytest.mark.parametrize("name", ["notes.txt", ".git/HEAD"])
def test_a_signed_bundle_does_not_remove_files_that_are_not_the_earlier_ones(device, made, name):
    (device / name).parent.mkdir(exist_ok=True)
    (device / name).write_text("mine")
    before = {path: path.read_bytes() for path in device.rglob("*") if path.is_file()}
    refused(made["ben"], sign(made["ben"], KEY), device, None, f"holds {name}, which is no file of its bundle")
    assert {path: path.read_bytes() for path in device.rglob("*") if path.is_file()} == before


def test_a_signed_bundle_does_not_take_the_place_of_a_folder_that_is_none(made, tmp_path):
    (tmp_path / "photos").mkdir()
    bundle = unpack(made["ben"], sign(made["ben"], KEY), KEY.public_key(), tmp_path / "photos")
    assert bundle.manifest.task.classes, "an empty folder is one to use"
    (tmp_path / "photos" / "manifest.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused(
        made["ben"], sign(made["ben"], KEY), tmp_path / "photos", None, "photos is not replaced: it is not a bundle"
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_answer_that_is_no_regular_file_is_refused_at_once(device, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "fifo", tmp_path / "none", device):
        refused(file, "a.b", device, Asked(ANNA), "expected a regular file|cannot be read")


def test_a_bundle_that_is_asked_for_is_installed_until_its_time_is_over(made, bank, tmp_path):
    asked = Asked(new_request(), bank.card.sha256)
    statement = sign_statement(made["ben"], KEY, asked, HOUR, NOW)
    for now in (NOW - 300, NOW, NOW + HOUR):
        bundle = unpack(made["ben"], statement, KEY.public_key(), tmp_path / "out", asked, now)
        assert set(bundle.manifest.task.classes) == {"lion", "lynx"}
    assert unpack(made["ben"], statement, KEY.public_key(), tmp_path / "out", Asked(asked.request), NOW)


def test_a_signature_of_release_0_1_0_is_read_where_no_request_was_made(made, tmp_path):
    (tmp_path / "file").write_bytes(b"refocus" * 100)
    assert sign(tmp_path / "file", KEY) == V1, "as release 0.1.0 signed it"
    bundle = unpack(made["ben"], sign(made["ben"], KEY), KEY.public_key(), tmp_path / "out")
    assert set(bundle.manifest.task.classes) == {"lion", "lynx"}


V1 = "T3MztC8YY89gD5A/bm550oV/zq1FzDVcjnI5SxOGVt5wFYlzaefBmuzmGy0U4XV7DGWRvALByWg48/xhDvBvBQ=="
