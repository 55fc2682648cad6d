"""What no command may do, whatever it is given: a traceback, waiting for a pipe, replacing a device, more than was said."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
import typer.main

from refocus.benchmarks.report.report import write_report
from refocus.cloud_train.documents import write_results
from refocus.edge.commands import app as cli
from refocus.edge.errors import PersonalWeightsError, RefocusError, UpdateError
from refocus.edge.files import new_file, read_file, sweep, working_folder, write_file
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.personal.received_files import read_personal
from refocus.edge.recognize.album import Report, Row, _write
from refocus.edge.recognize.explain import Explanation, save_picture
from refocus.edge.recognize.recognizer import Displayed

PHOTOS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]
SPACE = hashlib.sha256(b"an encoder").hexdigest()


@pytest.fixture(scope="module")
def command():
    """``refocus``, made once: with the commands of all packages that takes a second."""
    return cli.command()


@pytest.fixture
def run(command, monkeypatch, capsys, tmp_path):
    """Runs a command in this process: a process of its own would take a second for each."""
    monkeypatch.setattr(cli, "command", lambda: command)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def called(*words):
        monkeypatch.setattr("sys.argv", ["refocus", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return called


def assert_one_line(found, *words: str) -> None:
    status, _, said = found
    assert status == 1, said
    (line,) = said.strip().splitlines()
    assert line.startswith("refocus: ")
    for word in words:
        assert word in line


# ---- empty strings and short prefixes


@pytest.fixture
def profile(tmp_path):
    """A person with three photos."""
    with FeatureHistory(tmp_path / "anna.history.sqlite3") as stored:
        for number, photo in enumerate(PHOTOS):
            stored.append(SPACE, photo, np.full(9, number, "f4"), f"/photos/{number}.png")
    return tmp_path


def stored_photos(folder: Path) -> list[str]:
    with FeatureHistory(folder / "anna.history.sqlite3") as stored:
        return [entry.photo for entry in stored.entries()]


@pytest.mark.parametrize("flag", ["--photo", "--space"])
def test_an_empty_photo_or_space_erases_nobody(run, profile, flag):
    found = run("history", "erase", flag, "", "--yes", "--profile", "anna", "--profiles", profile)
    assert_one_line(found, f"{flag} is empty")
    assert stored_photos(profile) == PHOTOS


@pytest.mark.parametrize("words", [("album", "b", "p", "--out", "r.csv", "--profile", ""), ("recognize", "b", ""),
                                   ("recognize", "", "photo.jpg"), ("history", "stats", "--profiles", ""),
                                   ("export", "x", "--out", ""), ("bench", "b", "--out", ""),
                                   ("evaluate", ""), ("personal", "drop", "--profile", "")])  # fmt: skip
def test_an_empty_string_is_a_value_for_every_command(run, words):
    assert_one_line(run(*words), "is empty; give a value, or leave it out")


@pytest.mark.parametrize("length", [1, 7])
def test_a_few_letters_of_an_identity_erase_no_photo(run, profile, length):
    for flag, given in (("--photo", PHOTOS[0][:length]), ("--space", SPACE[:length])):
        found = run("history", "erase", flag, given, "--yes", "--profile", "anna", "--profiles", profile)
        assert_one_line(found, f"{flag} '{given}'", "expected at least 8 characters")
    assert stored_photos(profile) == PHOTOS


def test_eight_digits_of_an_identity_erase_their_photo(run, profile):
    found = run("history", "erase", "--photo", PHOTOS[0][:8], "--yes", "--profile", "anna", "--profiles", profile)
    assert found[0] == 0, found
    assert stored_photos(profile) == PHOTOS[1:]


# ---- no traceback


@pytest.fixture
def failing(run, monkeypatch):
    """A command with a mistake, as an installed part might bring it."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)

    @app.command("fail")
    def fail(how: Annotated[str, typer.Argument()]) -> None:
        if how == "tensors":
            pytest.importorskip("safetensors.numpy").save_file({"x": np.zeros(9)}, "no folder/x.safetensors")
        raise {"key": KeyError("what\nnobody expected"), "recursion": RecursionError("too deep"),
               "memory": MemoryError(), "module": ModuleNotFoundError("No module named 'refocus.edge.nowhere'", name="refocus.edge.nowhere"),
               "unicode": UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates")}[how]  # fmt: skip

    monkeypatch.setattr(cli, "command", lambda: typer.main.get_command(app))


def test_tensors_that_cannot_be_written_say_so_as_other_files_do(run, failing):
    found = run("fail", "tensors")
    assert_one_line(found, "(os error 2)", "check the path, its rights and the free space")
    assert "internal error" not in found[2]


@pytest.mark.parametrize("how", ["key", "recursion", "memory", "module", "unicode"])
def test_an_unexpected_error_is_one_line_and_names_a_private_log(run, failing, tmp_path, how):
    umask = os.umask(0)
    try:
        found = run("fail", how)
    finally:
        os.umask(umask)
    assert_one_line(found, "internal error", "please report it")
    (log,) = (tmp_path / "state" / "refocus" / "errors").iterdir()
    assert str(log) in found[2]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert "Traceback (most recent call last)" in log.read_text()


def test_a_log_that_cannot_be_written_hides_no_error(run, failing, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert_one_line(run("fail", "key"), "KeyError", "no file for the traceback could be written")


def test_logs_of_errors_do_not_pile_up(run, failing, tmp_path):
    for _ in range(24):
        run("fail", "key")
    assert len(list((tmp_path / "state" / "refocus" / "errors").iterdir())) == 20


@pytest.mark.parametrize("threads", ["99999999", "99999999999999", "-1"])
def test_more_threads_than_a_machine_has_are_wrong_usage(run, threads):
    for words in (("recognize", "b", "p"), ("album", "b", "p", "--out", "r.csv"), ("improve", "b", "p", "--out", "o"),
                  ("migrate", "a", "b"), ("update", "run", "f"), ("update", "back", "f"),
                  ("accuracy", "b", "--data", "d", "--person", "p", "--label", "l"), ("bench", "b")):  # fmt: skip
        assert run(*words, "--threads", threads)[0] == 2, words


# ---- inputs


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_for_a_person_s_file_is_refused_and_not_waited_for(pipe):
    with pytest.raises(PersonalWeightsError, match="is not a file"):
        read_personal(pipe, None)


@pytest.mark.parametrize("device", ["pipe", "/dev/zero"])
def test_a_pipe_for_a_list_of_classes_is_refused_and_not_waited_for(pipe, device):
    from refocus.edge.commands.taper import read_names

    with pytest.raises(RefocusError, match="is not a file; give the path of a text with one class name per line"):
        read_names("", pipe if device == "pipe" else Path(device), False)


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(RefocusError, match="has 1099511627776 bytes, the limit is 1000"):
        read_file(tmp_path / "large", 1000, "a file")
    (tmp_path / "link").symlink_to(tmp_path / "small")
    (tmp_path / "small").write_bytes(b"content")
    assert read_file(tmp_path / "link", 1000, "a file") == b"content"


@pytest.mark.parametrize("url", ["http://", "https:///path", "http://host:port/", "http://host:99999/", "ftp://host/",
                                 "http://[::1/", "http://a b/", "host", "https://host/#a", "https://host/?a"])  # fmt: skip
def test_a_device_is_not_set_up_with_a_broken_url(run, tmp_path, url):
    (tmp_path / "root.json").write_text('{"signed": {"_type": "root", "keys": {"a": {}}}, "signatures": [{}]}')
    found = run("update", "init", tmp_path / "device", "--url", url, "--root", tmp_path / "root.json",
                "--device-class", "phone")  # fmt: skip
    assert_one_line(found, f"--url '{url}'", "expected https://HOST/PATH")
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize("root", ["", "{}", "[]", "null", '{"signed": {"_type": "targets", "keys": {"a": 1}}}', "[" * 9999,
                                  '{"signed": {"_type": "root", "keys": {}}, "signatures": [{}]}'])  # fmt: skip
def test_a_device_is_not_set_up_with_an_empty_root(run, tmp_path, root):
    (tmp_path / "root.json").write_text(root)
    found = run("update", "init", tmp_path / "device", "--url", "https://example.org/", "--root",
                tmp_path / "root.json", "--device-class", "phone")  # fmt: skip
    assert_one_line(found, "expected the repository's 1.root.json")
    assert not (tmp_path / "device").exists()


def test_a_device_is_not_set_up_with_a_pipe(pipe, tmp_path):
    from refocus.edge.commands.update import _read_root

    with pytest.raises(UpdateError, match="is not a file"):
        _read_root(pipe)


# ---- outputs


EXPLANATION = Explanation("p", (("a", 1.0),), (("a", 1.0),), (("a", 1.0),), trust=0.5, own_weight=1.0, attended=())
OUTPUTS = {
    "file": lambda path: write_file(path, "text"),
    "export": lambda path: FeatureHistory(path.parent / "a.history.sqlite3").__enter__().export(path),
    "album": lambda path: _write(Report((Row("a.jpg", (Displayed("a", 1.0, 1.0),), 0.5),), 1), 1, path),
    "picture": lambda path: save_picture([EXPLANATION], path),
    "results": lambda path: write_results({"a": 1}, path),
}
PRIVATE = ("export", "album", "picture")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "sqlite3" not in path.name)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_replaces_a_link_a_folder_or_a_device(output, tmp_path):
    target = tmp_path / "target"
    target.write_text("somebody's")
    (tmp_path / "link.csv").symlink_to(target)
    (tmp_path / "broken.csv").symlink_to(tmp_path / "missing")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    kinds = {"link.csv": "a link", "broken.csv": "a link", "folder.csv": "a folder", "pipe.csv": "a pipe"}
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device.csv", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        kinds["device.csv"] = "a device"
    before = names(tmp_path)
    for name, kind in kinds.items():
        mode = (tmp_path / name).lstat().st_mode
        with pytest.raises(RefocusError, match=f"is {kind}, which is not replaced"):
            OUTPUTS[output](tmp_path / name)
        assert (tmp_path / name).lstat().st_mode == mode
    assert target.read_text() == "somebody's"
    assert names(tmp_path) == before


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("there", [False, True])
def test_a_file_with_a_person_s_data_is_for_its_owner_alone(output, there, tmp_path):
    path = tmp_path / "out.csv"
    if there:
        path.write_text("older")
        path.chmod(0o666)
    umask = os.umask(0o022)
    try:
        OUTPUTS[output](path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if output in PRIVATE else 0o644)
    assert names(tmp_path) == ["out.csv"]


def test_an_output_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "out").write_text("older")
    with pytest.raises(ValueError, match="half way"), new_file(tmp_path / "out") as stream:
        stream.write(b"half")
        raise ValueError("half way")
    assert (tmp_path / "out").read_text() == "older"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("make", [new_file, working_folder])
@pytest.mark.parametrize("still", [False, True], ids=["swept", "being swept"])
def test_what_another_writer_sweeps_before_it_is_locked_is_made_again(make, still, tmp_path, monkeypatch):
    path, lock, others = tmp_path / "out", fcntl.flock, []
    path.touch()

    def lock_late(descriptor, kind):
        """Locks after a sweep of another writer, which is at its end or has just begun."""
        if not others:
            (left,) = tmp_path.glob(".refocus-*")
            others.append(os.open(left, os.O_RDONLY))
            lock(others[0], kind)
            if not still:
                left.rmdir() if left.is_dir() else left.unlink()
                lock(others[0], fcntl.LOCK_UN)
        lock(descriptor, kind)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lock_late)
        with make(path) as made:
            if make is new_file:
                made.write(b"new")
            else:
                (made / "file").write_text("new")
    os.close(others[0])
    assert path.read_bytes() == (b"new" if make is new_file else b"")
    with make(path):  # sweeps what it finds
        pass
    assert names(tmp_path) == ["out"]


def test_a_finished_file_is_put_in_place_before_another_writer_can_sweep_it(tmp_path, monkeypatch):
    put_in_place = Path.replace

    def late(self, target):
        sweep(tmp_path, ".refocus-*.tmp")
        return put_in_place(self, target)

    monkeypatch.setattr(Path, "replace", late)
    write_file(tmp_path / "out", "text")
    assert (tmp_path / "out").read_text() == "text"


def test_a_report_follows_no_link_out_of_its_folder(tmp_path):
    (tmp_path / "secret").write_text("somebody's")
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("table.md", "index.html", "bench.md", "bench.html"):
        (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(RefocusError):
        write_report(folder)
    assert (tmp_path / "secret").read_text() == "somebody's"


def test_a_name_that_is_no_text_becomes_valid_json_and_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    _write(Report((Row(name, (Displayed("a", 1.0, 1.0),), 0.5),), 1), 1, tmp_path / "r.json")
    (row,) = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert os.fsencode(row["file"]) == b"caf\xe9.png"
    _write(Report((Row(name, (Displayed("a", 1.0, 1.0),), 0.5),), 1), 1, tmp_path / "r.csv")
    assert re.search(r"^caf\\udce9\.png,", (tmp_path / "r.csv").read_text(encoding="utf-8"), re.MULTILINE)
