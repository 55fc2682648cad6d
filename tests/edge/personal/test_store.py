"""A person's weights are whole, theirs, and of the model that runs; or they are not used."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.bundle.tensor_file import MAX_HEADER_BYTES, decode_tensors, encode_tensors
from refocus.edge.errors import PersonalWeightsError
from refocus.edge.personal.store import PersonalWeightStore

MODEL, NEWER_MODEL = "a" * 64, "b" * 64
WIDTH, RANK = 16, 4


def person(seed: int, size: int = WIDTH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"down": (size, RANK), "up": (RANK, size)}
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def adapter(seed: int = 1, **changed: np.ndarray) -> NewWeights:
    return NewWeights("weights", "fedperfix", {**person(seed), **changed})


def prompt(seed: int = 1, count: int = WIDTH) -> NewWeights:
    return NewWeights(
        "inputs", "pfedpg", {"prompt": np.random.default_rng(seed).standard_normal((1, count)).astype("f")}
    )


@pytest.fixture
def cache(tmp_path) -> PersonalWeightStore:
    return PersonalWeightStore(tmp_path / "cache")


def stored(cache: PersonalWeightStore, weights: NewWeights, profile: str = "anna", model: str = MODEL):
    cache.put(profile, model, weights)
    return cache.get(profile, model)


# What is served


def test_weights_come_back_as_they_were_given(cache):
    odd = {"half": np.arange(3, dtype="f2"), "int8": np.arange(-2, 3, dtype="i1"), "long": np.array(2**40), "none": np.zeros((0, 4), "f"),
           "transposed": np.arange(6, dtype="f").reshape(2, 3).T, "big": np.arange(3, dtype=">f4")}  # fmt: skip
    back = stored(cache, NewWeights("inputs", "taper", odd))
    assert back.tensors.keys() == odd.keys()
    for name, value in odd.items():
        assert back.tensors[name].shape == value.shape
        np.testing.assert_array_equal(back.tensors[name], value)
        assert not back.tensors[name].flags.writeable
        assert back.tensors[name].flags.aligned


def test_weights_of_an_older_model_are_never_served(cache):
    cache.put("anna", MODEL, adapter())
    assert cache.get("anna", NEWER_MODEL) is None


def test_weights_of_another_person_are_never_served(cache):
    cache.put("anna", MODEL, adapter(1))
    cache.put("ann", MODEL, adapter(2))
    assert cache.get("bob", MODEL) is None
    np.testing.assert_array_equal(cache.get("anna", MODEL).tensors["up"], person(1)["up"])
    np.testing.assert_array_equal(cache.get("ann", MODEL).tensors["up"], person(2)["up"])


def test_newer_weights_take_the_place_of_older_ones_whatever_their_carrier(cache):
    cache.put("anna", MODEL, adapter())
    weights = stored(cache, prompt())
    assert weights.carrier == "inputs"
    assert [(e.carrier, e.method) for e in cache.entries()] == [("inputs", "pfedpg")]
    assert len(list((cache.folder / "anna").iterdir())) == 1


def test_the_same_tensors_have_one_identity_everywhere(cache, tmp_path):
    reversed_order = NewWeights("weights", "fedperfix", dict(reversed(person(1).items())))
    other = PersonalWeightStore(tmp_path / "elsewhere")
    assert (
        stored(cache, adapter(1)).sha256
        == stored(other, reversed_order, "bob").sha256
        != stored(cache, adapter(2)).sha256
    )


def test_another_program_reads_the_file(cache):
    from safetensors.numpy import load_file

    weights = stored(cache, adapter())
    for name, value in load_file(weights.path).items():
        np.testing.assert_array_equal(value, person(1)[name])


# What is refused


@pytest.mark.parametrize("name", ["../anna", "a/b", "", ".", "..", ".hidden", "a\0b", "a" * 65, "a\n", "ä"])
def test_a_name_that_leaves_the_folder_is_refused(cache, name):
    for call in (lambda: cache.put(name, MODEL, adapter()), lambda: cache.get(name, MODEL), lambda: cache.drop(name)):
        with pytest.raises(PersonalWeightsError, match="profile.*stay in the folder"):
            call()
    with pytest.raises(PersonalWeightsError, match="model.*stay in the folder"):
        cache.put("anna", name, adapter())
    with pytest.raises(PersonalWeightsError, match="model.*stay in the folder"):
        cache.drop("anna", name)
    with pytest.raises(PersonalWeightsError, match="method.*stay in the folder"):
        cache.put("anna", MODEL, NewWeights("inputs", name, person(1)))


@pytest.mark.parametrize("place", [0, 7, 8, 40, 300, -1])
def test_a_changed_byte_is_refused_and_set_aside(cache, place):
    path = stored(cache, adapter()).path
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    again = PersonalWeightStore(cache.folder)
    with pytest.raises(PersonalWeightsError, match=f"{path.name} was changed.*fetch the weights of profile anna again"):
        again.get("anna", MODEL)
    assert again.get("anna", MODEL) is None
    assert [p.name for p in path.parent.iterdir()] == [f"{path.name}.damaged"]
    cache.put("anna", MODEL, adapter())
    np.testing.assert_array_equal(PersonalWeightStore(cache.folder).get("anna", MODEL).tensors["up"], person(1)["up"])
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_a_file_that_was_cut_short_is_set_aside(cache, keep):
    path = stored(cache, adapter()).path
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PersonalWeightsError, match="was changed"):
        PersonalWeightStore(cache.folder).get("anna", MODEL)


def test_a_link_to_another_file_is_not_followed(cache, tmp_path):
    path = stored(cache, adapter()).path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PersonalWeightsError, match="cannot be read"):
        PersonalWeightStore(cache.folder).get("anna", MODEL)


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        (NewWeights("inputs", "m"), "there are no tensors"),
        (NewWeights("inputs", "m", {"p": np.zeros(2)}), "tensor p is float64"),
        (NewWeights("inputs", "m", {"p": np.array([object()])}), "tensor p is object"),
        (NewWeights("inputs", "m", {"__metadata__": np.zeros(2, "f")}), "a name has"),
        (NewWeights("inputs", "m", {"": np.zeros(2, "f")}), "a name has"),
        (NewWeights("inputs", "m", {f"{i:0190}": np.zeros(1, "f") for i in range(5000)}), "need a header above"),
        (NewWeights("whole", "m"), "there are no tensors"),
    ],
)  # fmt: skip
def test_what_are_no_weights_is_not_kept(cache, weights, what):
    with pytest.raises(PersonalWeightsError, match=what):
        cache.put("anna", MODEL, weights)
    assert cache.entries() == []


def test_a_file_of_a_kind_that_could_run_code_is_not_kept(cache, tmp_path):
    for name, carrier in (
        ("model.pkl", "whole"),
        ("model.pt", "weights"),
        ("prompt.npz", "inputs"),
        ("model.onnx", "weights"),
    ):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(PersonalWeightsError, match=f"carrier {carrier} takes"):
            cache.put("anna", MODEL, NewWeights(carrier, "m", file=tmp_path / name))
    with pytest.raises(PersonalWeightsError, match="gone.onnx cannot be read"):
        cache.put("anna", MODEL, NewWeights("whole", "m", file=tmp_path / "gone.onnx"))


def header(text: str, data: bytes = bytes(16)) -> bytes:
    text += " " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"short", (2**40).to_bytes(8, "little"), (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(2 * MAX_HEADER_BYTES),
        header("[]"), header("{"), header('{"a": 1}'), header("{}"), header('{"a":{"dtype":"F32","shape":[4]}}'),
        header('{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}'),
        header('{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}'),
        header('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}}'),
        header('{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}'),
        header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'),
        header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        header('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"I8","shape":[4],"data_offsets":[12,16]}}'),
        header('{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[3],"data_offsets":[1,13]}}', bytes(13)),
        header('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"more":1}}'),
    ],
)  # fmt: skip
def test_a_file_that_lies_about_its_tensors_is_refused(content):
    with pytest.raises(PersonalWeightsError, match="here is no file of tensors"):
        decode_tensors(memoryview(content), "here")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_reads_beyond_the_file_or_raises_anything_else(data):
    content = bytearray(b"".join(encode_tensors(person(1))))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    try:
        tensors = decode_tensors(memoryview(bytes(content)), "here")
    except PersonalWeightsError:
        return
    assert sum(tensor.nbytes for tensor in tensors.values()) < len(content)


# Room, rights, and processes


def test_the_least_recently_used_person_goes_first_when_the_cache_is_full(tmp_path):
    size = len(b"".join(encode_tensors(person(1))))
    cache = PersonalWeightStore(tmp_path, max_bytes=3 * size)
    for name in ("anna", "bob", "cleo"):
        cache.put(name, MODEL, adapter())
    cache.get("anna", MODEL)
    again = PersonalWeightStore(tmp_path, max_bytes=3 * size)  # what was used last is known after a restart
    assert [e.profile for e in again.entries()] == ["bob", "cleo", "anna"]
    again.put("dora", MODEL, adapter())
    assert [e.profile for e in again.entries()] == ["cleo", "anna", "dora"]
    assert cache.get("bob", MODEL) is None
    assert not (tmp_path / "bob").exists()


def test_last_use_is_known_where_the_clock_was_set_back(cache, monkeypatch):
    cache.put("anna", MODEL, adapter())
    cache.put("bob", MODEL, adapter())
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    cache.get("anna", MODEL)
    assert [e.profile for e in cache.entries()] == ["bob", "anna"]


def test_weights_larger_than_the_cache_push_nobody_out(tmp_path):
    cache = PersonalWeightStore(tmp_path, max_bytes=2000)
    cache.put("anna", MODEL, adapter())
    with pytest.raises(PersonalWeightsError, match="more than the 2000 bytes"):
        cache.put("bob", MODEL, prompt(count=1000))
    assert [e.profile for e in cache.entries()] == ["anna"]


def test_copies_for_several_targets_that_do_not_fit_together_change_nothing(tmp_path):
    size, models = len(b"".join(encode_tensors(person(1)))), (MODEL, NEWER_MODEL, "c" * 64)
    cache = PersonalWeightStore(tmp_path, max_bytes=3 * size - 1)
    cache.put("anna", MODEL, adapter(seed=2))
    before = cache.entries()
    with pytest.raises(PersonalWeightsError, match=f"{3 * size} with a copy for each target .* fewer targets"):
        cache.put_each("anna", models, adapter())
    assert cache.entries() == before


def test_a_copy_for_one_target_does_not_push_out_that_for_another(tmp_path):
    size, models = len(b"".join(encode_tensors(person(1)))), (MODEL, NEWER_MODEL, "c" * 64)
    cache = PersonalWeightStore(tmp_path, max_bytes=3 * size)
    later = cache.put("bob", MODEL, adapter(seed=2)).path
    os.utime(later, ns=(2**62, 2**62))  # by a clock that was set back since
    assert [entry.model for entry in cache.put_each("anna", models, adapter())] == [*models]
    assert all(cache.get("anna", model) for model in models)
    assert cache.get("bob", MODEL) is None


def test_only_the_owner_can_read_weights(cache):
    old = os.umask(0)
    try:
        path = stored(PersonalWeightStore(cache.folder / "new"), adapter()).path
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_person_can_have_their_weights_removed(cache):
    for model in (MODEL, NEWER_MODEL):
        cache.put("anna", model, adapter())
        cache.put("bob", model, adapter())
    assert cache.drop("anna", MODEL) == 1
    assert cache.get("anna", MODEL) is None
    assert cache.get("anna", NEWER_MODEL) is not None
    path = cache.get("bob", MODEL).path
    path.write_bytes(b"damaged")
    with pytest.raises(PersonalWeightsError):
        PersonalWeightStore(cache.folder).get("bob", MODEL)
    assert cache.drop("bob") == 2
    assert not (cache.folder / "bob").exists()
    assert cache.drop("bob") == 0
    assert [e.profile for e in cache.entries()] == ["anna"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PersonalWeightsError, match="cannot hold personal weights"):
        PersonalWeightStore(tmp_path / "file" / "cache")


def run_python(code: str, *arguments: object, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom refocus.edge.bundle.personal_weights import NewWeights\nfrom refocus.edge.personal.store import PersonalWeightStore\n"
        + code
    )
    return subprocess.run(
        [*before, sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def test_a_full_disk_leaves_the_older_weights(cache):
    """The system refuses to let the file grow, as a full disk does."""
    cache.put("anna", MODEL, adapter())
    done = run_python(
        "import resource\nfrom refocus.edge.errors import PersonalWeightsError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: PersonalWeightStore(Path(sys.argv[1])).put('anna', 'a' * 64, NewWeights('inputs', 'm', {'p': np.zeros(1_000_000, 'f')}))\n"
        "except PersonalWeightsError as error: print(error)",
        cache.folder,
    )
    assert "what was there before is intact, free some space" in done.stdout, done.stderr
    np.testing.assert_array_equal(cache.get("anna", MODEL).tensors["up"], person(1)["up"])
    assert sorted(p.name for p in cache.folder.iterdir()) == [".lock", "anna"]


def test_two_processes_lose_nothing(cache):
    code = (
        "cache = PersonalWeightStore(Path(sys.argv[1]), sync=False)\n"
        "for n in range(40):\n"
        "    for who in (sys.argv[2] + str(n), 'both'):\n"
        "        cache.put(who, 'a' * 64, NewWeights('inputs', 'm', {'p': np.full(5000, n, 'f')}))\n"
        "    assert cache.get('both', 'a' * 64) is not None\n"
    )
    command = [
        sys.executable,
        "-c",
        "import sys, numpy as np\nfrom pathlib import Path\nfrom refocus.edge.bundle.personal_weights import NewWeights\nfrom refocus.edge.personal.store import PersonalWeightStore\n"
        + code,
        str(cache.folder),
    ]
    both = [subprocess.Popen([*command, who], stderr=subprocess.PIPE, text=True) for who in "xy"]
    assert [process.communicate(timeout=120)[1] for process in both] == ["", ""]
    assert {e.profile for e in cache.entries()} == {f"{who}{n}" for who in "xy" for n in range(40)} | {"both"}
    assert cache.get("x7", MODEL).tensors["p"][0] == 7
    assert len(list((cache.folder / "both").iterdir())) == 1


def test_mapped_weights_take_no_memory_of_their_own(cache):
    cache.put("anna", MODEL, NewWeights("weights", "m", {"p": np.zeros(16 * 1024**2, "f")}))
    done = run_python(
        "def private(): return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon'))\n"
        "before = private()\nweights = PersonalWeightStore(Path(sys.argv[1])).get('anna', 'a' * 64)\n"
        "weights.tensors['p'].max()\nprint(private() - before)",
        cache.folder,
    )
    assert int(done.stdout) < 4 * 1024, f"{done.stdout} KiB for a file of 64 MiB; {done.stderr}"


# A warm process forks one writer per line it reads; each writes generation after generation until it is killed.
WRITERS = """
import os, sys, numpy as np
from pathlib import Path
from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.personal.store import PersonalWeightStore
print("warm", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        cache = PersonalWeightStore(Path(sys.argv[1]), max_bytes=8_000_000, sync=False)
        os.write(1, b"ready %d\\n" % os.getpid())
        for generation in range(int(line), int(line) + 10_000):
            for who in ("anna", f"p{generation % 7}"):
                cache.put(who, "a" * 64, NewWeights("weights", "m", {"p": np.full(250_000, generation, "f")}))
            os.write(1, b"%d\\n" % generation)
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def kill_writers_at_random(folder, kills: int, seed: int) -> None:
    rng, acknowledged = random.Random(seed), 0
    nursery = subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert nursery.stdout.readline() == "warm\n"
        for kill in range(kills):
            nursery.stdin.write(f"{kill * 10_000}\n")
            nursery.stdin.flush()
            ready, pid = nursery.stdout.readline().split()
            assert ready == "ready"
            printed = [nursery.stdout.readline() for _ in range(1 + rng.randrange(3))]
            time.sleep(rng.uniform(0, 0.008))
            os.kill(int(pid), signal.SIGKILL)
            printed += list(iter(nursery.stdout.readline, "gone\n"))
            last = int(printed[-1])
            cache = PersonalWeightStore(folder, max_bytes=8_000_000)
            for entry in cache.entries():
                values = cache.get(entry.profile, MODEL).tensors["p"]
                assert (values == values[0]).all(), f"kill {kill}: two generations in one file"
            assert cache.get("anna", MODEL).tensors["p"][0] in (last, last + 1), (
                f"kill {kill}: acknowledged weights were lost"
            )
            acknowledged += len(printed)
            cache.put("bob", MODEL, NewWeights("inputs", "m", {"p": np.zeros(3, "f")}))
            assert not list(folder.glob(".writing-*")), f"kill {kill}: what the dead left was not removed"
            assert sum(p.stat().st_size for p in folder.glob("*/*")) <= 8_000_000
    finally:
        nursery.kill()
        nursery.communicate()
    assert acknowledged >= kills


def test_a_kill_while_writing_leaves_the_older_weights(tmp_path):
    kill_writers_at_random(tmp_path, kills=25, seed=0)


@pytest.mark.slow
def test_a_thousand_kills_while_writing_lose_nothing(tmp_path):
    kill_writers_at_random(tmp_path, kills=int(os.environ.get("REFOCUS_KILLS", "1000")), seed=1)


# What is another person's, or no file


def test_a_profile_whose_folder_is_a_link_to_another_persons_is_refused(cache):
    stored(cache, adapter(1), "ben")
    (cache.folder / "anna").symlink_to(cache.folder / "ben")
    for touch in (lambda: cache.get("anna", MODEL), lambda: cache.put("anna", MODEL, adapter(2)),
                  lambda: cache.drop("anna")):  # fmt: skip
        with pytest.raises(PersonalWeightsError, match="is a link, so the weights behind it may be another person's"):
            touch()
    np.testing.assert_array_equal(PersonalWeightStore(cache.folder).get("ben", MODEL).tensors["up"], person(1)["up"])


def test_a_link_to_another_persons_file_is_refused(cache):
    bens = stored(cache, adapter(1), "ben")
    (cache.folder / "anna").mkdir()
    (cache.folder / "anna" / bens.path.name).symlink_to(bens.path)
    with pytest.raises(PersonalWeightsError, match="cannot be read"):
        cache.get("anna", MODEL)


def test_an_entry_that_is_no_file_blocks_nobody(cache):
    name = stored(cache, adapter(1), "ben").path.name
    (cache.folder / "anna").mkdir()
    os.mkfifo(cache.folder / "anna" / name)
    assert cache.get("anna", MODEL) is None
    assert [entry.profile for entry in cache.entries()] == ["ben"]


def test_weights_whose_time_cannot_be_changed_are_served(cache, monkeypatch):
    """As those of a read-only file system, or of a file that another user owns."""
    stored(cache, adapter())

    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    for fresh in (cache, PersonalWeightStore(cache.folder)):
        assert fresh.get("anna", MODEL) is not None


# Everything is imported before the user changes, who may not read the interpreter's files.
READS = """
import fcntl, os
from refocus.edge.errors import PersonalWeightsError
store = Path(sys.argv[1])
if sys.argv[2] == "user" and os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store = PersonalWeightStore(store)
for attempt in range(2):
    try: print(float(store.get("anna", "a" * 64).tensors["up"][0, 0]))
    except PersonalWeightsError as error: print(error)
print(*(entry.profile for entry in store.entries()))
for change in (lambda: store.put("anna", "a" * 64, NewWeights("inputs", "m", {"p": np.zeros(3, "f")})), lambda: store.drop("anna")):
    try: change()
    except PersonalWeightsError as error: print(error)
"""


@pytest.fixture
def open_folder():
    """A folder that every user may enter, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def read_only(folder: Path, how: str) -> list[str]:
    """Lines that a process prints that can read the store in a folder, and write nothing there."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if how == "user":
        done = run_python(READS, folder, how)
    else:
        options = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        if subprocess.run([*options, "sh", "-c", mount], capture_output=True).returncode:
            pytest.skip("this system lets nobody mount a folder")
        done = run_python(READS, folder, how, before=[*options, "sh", "-c", f'{mount} && exec "$@"', "sh"])
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["user", "mount"])
@pytest.mark.parametrize("lock", [True, False])
def test_weights_in_a_folder_that_cannot_be_written_are_served_and_stay(open_folder, how, lock):
    cache = PersonalWeightStore(open_folder / "cache")
    cache.put("anna", MODEL, adapter())
    if not lock:
        (cache.folder / ".lock").unlink()
    first, again, profiles, *refused = read_only(cache.folder, how)
    assert float(first) == float(again) == person(1)["up"][0, 0]
    assert profiles == "anna"
    why = "Permission denied" if how == "user" else "Read-only file system"
    assert refused == 2 * [f"{cache.folder} cannot hold personal weights ({why}); check its rights"]
    assert PersonalWeightStore(cache.folder).get("anna", MODEL) is not None


@pytest.mark.parametrize("how", ["user", "mount"])
def test_changed_weights_in_a_folder_that_cannot_be_written_are_refused_again_and_again(open_folder, how):
    cache = PersonalWeightStore(open_folder / "cache")
    path = cache.put("anna", MODEL, adapter()).path
    path.write_bytes(b"damaged")
    lines = read_only(cache.folder, how)
    for line in lines[:2]:
        assert "was changed: its SHA-256 is not that of its name; it cannot be set aside (" in line


def test_a_folder_of_another_user_whose_lock_can_be_written_takes_no_weights(cache, monkeypatch):
    cache.put("anna", MODEL, adapter())
    opens = os.open

    def refused(path, flags, *more, **named):
        if ".writing-" in str(path):
            raise PermissionError(13, "Permission denied")
        return opens(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PersonalWeightsError, match=r"cannot take the weights \(Permission denied\).*check its rights"):
        cache.put("anna", MODEL, adapter(2))


def test_a_file_in_the_place_of_a_persons_folder_is_one_clear_error(cache):
    (cache.folder / "ben").write_bytes(b"")
    with pytest.raises(PersonalWeightsError, match="ben cannot be read as a folder of personal weights"):
        cache.get("ben", MODEL)
