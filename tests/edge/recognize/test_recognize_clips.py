"""A bundle that recognises clips: animations and folders of frames are remembered, everything else is refused unstored."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import msgspec
import numpy as np
import onnx
import pytest
from golden import write_golden
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from refocus.edge.bundle.load import Bundle, load_bundle, write_manifest
from refocus.edge.bundle.manifest import Artifact, Head, Manifest, Personalisation, Preprocessing, Tensor
from refocus.edge.commands import app as cli
from refocus.edge.errors import BundleError, PhotoError, RefocusError
from refocus.edge.photos.preprocess import folder_identity
from refocus.edge.recognize import Recognizer, answer_album, find_photos
from refocus.edge.update.canary import Limits, compare, is_shortage

T, SIDE = 4, 16
CONTRACT = Preprocessing(resize_shorter=SIDE, crop=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3, frames=T)


def frames(start, step, count=8):
    """Frames of one grey each, with a dot that moves, so that no two are the same."""
    made = []
    for number in range(count):
        pixels = np.full((SIDE, SIDE, 3), start + step * number, dtype=np.uint8)
        pixels[0, number] = 255
        made.append(Image.fromarray(pixels))
    return made


def animation(pictures, kind="WEBP"):
    stream = io.BytesIO()
    lossless = {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(stream, kind, save_all=True, append_images=pictures[1:], **lossless)
    return stream.getvalue()


BRIGHTER, DARKER = animation(frames(20, 25)), animation(frames(220, -25), "GIF")


def program(path, inputs, outputs, nodes, constants):
    def info(about):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in about.items()]

    kept = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "clip", info(inputs), info(outputs), kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def artifact(folder, role, inputs, outputs, **more):
    content = (folder / f"{role}.onnx").read_bytes()
    inputs, outputs = (
        tuple(Tensor(name=name, dtype="float32", shape=shape) for name, shape in about.items())
        for about in (inputs, outputs)
    )
    return Artifact(role=role, runtime="onnxruntime", precision="fp32", file=f"{role}.onnx", inputs=inputs, outputs=outputs,
                    sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content), min_runtime_version="1.20",
                    producer={}, **more)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The feature is the mean of each frame; whether the last is brighter than the first is the answer."""
    folder = tmp_path_factory.mktemp("bundle")
    photo, feature = {"photo": ("batch", T, 3, SIDE, SIDE)}, {"feature": ("batch", T)}
    mean = helper.make_node("ReduceMean", ["photo", "axes"], ["feature"], keepdims=0)
    program(folder / "encoder.onnx", photo, feature, [mean], {"axes": np.array([2, 3, 4])})
    answers = {
        **dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, 2)),
        "attention": (1, 1),
        "trust": (1,),
    }
    nodes = [helper.make_node("MatMul", ["feature", "weight"], ["plain_logits"])]
    nodes += [helper.make_node("Identity", ["plain_logits"], [name]) for name in ("calibrated_logits", "logits")]
    nodes += [helper.make_node("Identity", [f"{name}_value"], [name]) for name in ("attention", "trust")]
    weight = np.array([[-1, 1], [0, 0], [0, 0], [1, -1]], dtype=np.float32)
    constants = {
        "weight": weight,
        "attention_value": np.ones((1, 1), np.float32),
        "trust_value": np.zeros(1, np.float32),
    }
    program(folder / "head.onnx", {"feature": (1, T)}, answers, nodes, constants)
    space = "a" * 64
    programs = (
        artifact(folder, "encoder", photo, feature, feature_space=space),
        artifact(folder, "head", {"feature": (1, T)}, answers, accepts=(space,), head="way"),
    )
    how = Personalisation(method="plain", window=0, gate="none", form="none")
    heads = (Head(name="way", labels=("brighter", "darker"), personalisation=how),)
    about = {"schema_version": 6, "name": "ways", "preprocessing": CONTRACT, "artifacts": programs, "heads": heads}
    return write_manifest(folder, Manifest(**about))


@pytest.fixture
def files(tmp_path):
    (tmp_path / "brighter.webp").write_bytes(BRIGHTER)
    (tmp_path / "darker.gif").write_bytes(DARKER)
    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(frames(30, 20, 12)):
        frame.save(tmp_path / "frames" / f"{number}.png")
    return tmp_path


def test_animations_and_folders_are_recognised_and_remembered_once(bundle, files):
    with Recognizer(bundle, files / "anna.history.sqlite3") as recognizer:
        given = ["brighter.webp", "darker.gif", "frames", "frames"]
        assert [recognizer.recognize(files / name).label for name in given] == [
            "brighter",
            "darker",
            "brighter",
            "brighter",
        ]
        photos = [entry.photo for entry in recognizer.history.entries()]
    digests = b"".join(hashlib.sha256((files / "frames" / f"{n}.png").read_bytes()).digest() for n in range(12))
    assert photos == [hashlib.sha256(content).hexdigest() for content in (BRIGHTER, DARKER, digests)]


def test_folders_of_frames_are_among_the_photos_that_a_release_is_compared_on(bundle, files):
    profile = files / "anna.history.sqlite3"
    with Recognizer(bundle, profile) as recognizer:
        for name in ("brighter.webp", "darker.gif", "frames"):
            recognizer.recognize(files / name)
        recognizer.history.set_label(folder_identity(files / "frames"), "brighter")
    with Recognizer(bundle) as serving, Recognizer(bundle) as coming:
        found = compare(serving, coming, [profile], Limits())
        assert (found.photos, found.labelled, found.agreement) == (3, 1, 1.0)
        (files / "frames" / "3.png").unlink()
        found = compare(serving, coming, [profile], Limits())
        assert (found.photos, found.labelled) == (2, 0)


def test_a_clip_that_is_changed_while_a_release_is_tested_is_not_its_fault(bundle, files):
    class Erases(Recognizer):
        def feature_of(self, pixels):
            (files / "frames" / "3.png").unlink(missing_ok=True)
            return super().feature_of(pixels)

    profile = files / "anna.history.sqlite3"
    with Recognizer(bundle, profile) as recognizer:
        recognizer.recognize(files / "brighter.webp")
        recognizer.recognize(files / "frames")
    with Recognizer(bundle) as serving, Erases(bundle) as coming:
        with pytest.raises(OSError, match="a clip was changed during the tests") as error:
            compare(serving, coming, [profile], Limits())
        assert is_shortage(error.value)


def test_a_clip_played_backwards_is_answered_otherwise(bundle, files):
    with Recognizer(bundle) as recognizer:
        assert recognizer.recognize(animation(frames(20, 25)[::-1])).label == "darker"


def still(kind="PNG"):
    stream = io.BytesIO()
    frames(20, 25)[0].save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (still(), "is a still photo, and this bundle recognises clips"),
        (still("GIF"), "is a still photo"),
        (BRIGHTER[:-200], "damaged or truncated"),
        (DARKER[:-1], "damaged or truncated"),
        (frames(20, 25)[0], "is one image, and this bundle recognises clips"),
        (b"", "is empty"),
    ],
)
def test_what_is_no_whole_clip_is_refused_and_not_stored(bundle, tmp_path, content, said):
    with Recognizer(bundle, tmp_path / "anna.history.sqlite3") as recognizer:
        with pytest.raises(PhotoError, match=said):
            recognizer.recognize(content, "here")
        assert list(recognizer.history.photos(recognizer.space)) == []


def test_a_folder_without_frames_is_refused_and_not_stored(bundle, tmp_path):
    (tmp_path / "empty").mkdir()
    with Recognizer(bundle, tmp_path / "anna.history.sqlite3") as recognizer:
        with pytest.raises(PhotoError, match="is a folder with no frame in it"):
            recognizer.recognize(tmp_path / "empty")
        assert list(recognizer.history.photos(recognizer.space)) == []


def test_the_command_takes_all_three_and_takeout_has_them(bundle, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    profiles = ["--profiles", str(files / "profiles")]
    command = cli.command()
    words = ["recognize", str(bundle.folder), "brighter.webp", "darker.gif", "frames", *profiles, "--json"]
    command.main(words, standalone_mode=False)
    assert [row["answer"][0]["label"] for row in json.loads(capsys.readouterr().out)] == [
        "brighter",
        "darker",
        "brighter",
    ]
    command.main(["history", "export", "out.zip", *profiles], standalone_mode=False)
    with zipfile.ZipFile("out.zip") as archive:
        assert json.dumps(json.loads(archive.read("entries.json"))).count("/frames") == 1


def test_an_album_answers_clips_and_says_of_photos_that_they_are_none(bundle, files):
    with Recognizer(bundle) as recognizer:
        (files / "still.png").write_bytes(still())
        found = [path for path in find_photos([files]) if path.parent == files]
        report = answer_album(recognizer, found, files / "album.json", workers=1)
    assert [bool(row.error) for row in report.rows] == [False, False, True]
    assert "is a still photo, and this bundle recognises clips" in report.rows[2].error


def test_an_album_takes_folders_of_frames_as_clips_and_is_gone_on_with(bundle, files):
    given = [path.relative_to(files) for path in find_photos([files], of_clips=True)]
    assert [str(path) for path in given] == ["brighter.webp", "darker.gif", "frames"]
    assert find_photos([files / "frames"], of_clips=True) == [files / "frames"]
    assert len(find_photos([files / "frames"])) == 12
    (files / "frames" / "beside.gif").write_bytes(DARKER)  # then it is a folder with a clip in it, and with photos
    assert len(find_photos([files / "frames"], of_clips=True)) == 13
    (files / "frames" / "beside.gif").unlink()
    with Recognizer(bundle) as recognizer:
        reports = [
            answer_album(
                recognizer,
                find_photos([files], of_clips=True),
                files / f"{n}.json",
                workers=n,
                html=files / f"{n}.html",
            )
            for n in (1, 2)
        ]
        first = reports[0].rows
        assert [row.answer[0][0] for row in first] == ["brighter", "darker", "brighter"]
        assert reports[1].rows == first
        assert (files / "1.html").read_text().count("data:image/jpeg") == 3
        (files / "frames" / "4.png").write_bytes(b"no picture")
        with pytest.raises(PhotoError):
            recognizer.recognize(files / "frames")
        [row] = answer_album(recognizer, [files / "frames"], files / "broken.json", workers=1).rows
    assert "4.png" in row.error


def test_golden_vectors_of_clips_are_refused(bundle, tmp_path):
    with pytest.raises(RefocusError, match="recognises clips, and golden vectors are of photos"):
        write_golden(bundle, tmp_path / "golden")
    assert not (tmp_path / "golden").exists()


def test_a_bundle_of_photos_takes_the_first_frame_of_an_animation_and_no_folder(bundle, files):
    """As before there were clips."""
    from refocus.edge.photos import preprocess

    photos = msgspec.structs.replace(CONTRACT, frames=msgspec.UNSET)
    first = io.BytesIO()
    frames(20, 25)[0].save(first, "PNG")
    assert np.array_equal(preprocess(BRIGHTER, photos), preprocess(first.getvalue(), photos))


def test_programs_that_take_other_clips_than_the_manifest_states_are_refused(bundle, tmp_path):
    for number, frames_stated in enumerate((T + 1, msgspec.UNSET)):
        changed = msgspec.structs.replace(
            bundle.manifest, preprocessing=msgspec.structs.replace(CONTRACT, frames=frames_stated)
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in ("encoder.onnx", "head.onnx"):
            (folder / file).write_bytes((bundle.folder / file).read_bytes())
        with pytest.raises(BundleError, match=r"does not fit (clips of 5 frames of|photos of) 16"):
            write_manifest(folder, changed)


def test_a_manifest_for_photos_is_written_without_the_field():
    """Or identities of features that people have stored would change."""
    photos = msgspec.structs.replace(CONTRACT, frames=msgspec.UNSET)
    assert b"frames" not in msgspec.json.encode(photos)
    assert msgspec.json.decode(msgspec.json.encode(CONTRACT), type=Preprocessing).frames == T


def test_the_bundle_is_read_again(bundle):
    assert isinstance(load_bundle(bundle.folder), Bundle)
