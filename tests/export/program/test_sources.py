"""Where networks come from: timm, a function, a saved program. What is wrong with them is said in one line."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save, save_file
from torch import nn

from refocus.export.errors import ExportError
from refocus.export.program import NetworkSettings, open_network, programs_of, saved_program, weights_hash
from refocus.export.settings import is_network
from tests.weights_hub import weights_hub

CODE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem, self.layer = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, classes)
    def forward(self, photo):
        return self.layer(self.stem(photo).mean((2, 3)))
def build(classes=3):
    return Net(classes)
def sure():
    return torch.nn.Sequential(Net(3), torch.nn.Softmax(1))
def traced():
    return torch.jit.trace(Net(3), torch.zeros(1, 3, 224, 224))
def half():
    return Net(3).half()
def number():
    return 3
def broken():
    raise KeyError("no such file")
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_nets", raising=False)
    return tmp_path


def saved(folder, side=32, classes=3):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer = nn.Conv2d(3, 4, 3), nn.Linear(4, classes)

        def forward(self, photo):
            return self.layer(self.stem(photo).mean((2, 3)))

    path = folder / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.randn(1, 3, side, side),)), path)
    return path


def test_a_function_in_the_working_folder_gives_a_network(code):
    network = open_network("my_nets:build", NetworkSettings(arguments={"classes": 4}))
    assert network.labels == ("class 0", "class 1", "class 2", "class 3")
    assert network.preprocessing.crop == 224
    assert network.source["network"] == "my_nets:build"
    assert json.loads(network.source["arguments"]) == {"classes": 4}


def test_probabilities_are_taken_as_their_logarithms(code):
    network = open_network("my_nets:sure", NetworkSettings())
    assert "probabilities" in network.source["outputs"]
    photo = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(network.module(photo).softmax(1), network.module.network(photo))
    assert "outputs" not in open_network("my_nets:build", NetworkSettings()).source


@pytest.mark.parametrize(
    ("function", "message"),
    [("traced", "module of TorchScript, which cannot be captured"), ("half", r"torch\.float16, .* call \.float\(\)")],
)
def test_networks_of_other_kinds_are_told_what_to_do(code, function, message):
    with pytest.raises(ExportError, match=message):
        open_network(f"my_nets:{function}", NetworkSettings())


def test_whole_numbers_are_no_weights(code):
    made = open_network("my_nets:build", NetworkSettings()).module.state_dict()
    save_file({name: (255 * tensor.abs()).to(torch.uint8) for name, tensor in made.items()}, code / "w.safetensors")
    with pytest.raises(ExportError, match=r"layer\.bias holds torch\.uint8, the network's torch\.float32"):
        open_network("my_nets:build", NetworkSettings(checkpoint=code / "w.safetensors"))


def test_weights_and_labels_of_ones_own_are_taken(code):
    made = open_network("my_nets:build", NetworkSettings()).module
    save_file({name: tensor + 1 for name, tensor in made.state_dict().items()}, code / "w.safetensors")
    (code / "labels.txt").write_text("ant\nbee\ncat\n", encoding="utf-8-sig")  # as a Windows editor saves it
    asked = NetworkSettings(
        checkpoint=code / "w.safetensors", labels=code / "labels.txt", preprocessing={"crop": 96, "resize_shorter": 96}
    )
    network = open_network("my_nets:build", asked)
    assert network.labels == ("ant", "bee", "cat")
    assert network.preprocessing.crop == 96
    assert len(network.source["checkpoint_sha256"]) == 64


def test_a_timm_network_states_its_preprocessing_and_imagenets_classes():
    network = open_network("timm:mobilenetv2_050", NetworkSettings())
    assert len(network.labels) == len(set(network.labels)) == 1000
    assert network.labels[0].startswith("tench")
    assert network.preprocessing.crop == 224
    assert network.source.keys() >= {"network", "timm", "torch"}
    small = open_network("timm:mobilenetv2_050", NetworkSettings(arguments={"num_classes": 3}))
    assert small.labels == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("name", "side", "resize_shorter"),
    [
        ("mobilenetv2_050", 0, 256),  # which states 0.875, and 224
        ("mobilenetv2_050", 160, 183),
        ("mobilenetv3_small_050", 96, 110),
        ("deit_tiny_patch16_224", 224, 248),  # 0.9
        ("vit_tiny_patch16_384", 384, 384),  # 1
        ("vit_tiny_patch16_384", 192, 192),
    ],
)
def test_another_side_leaves_the_share_of_the_photo_that_the_network_was_trained_on(name, side, resize_shorter):
    arguments = {"img_size": side} if "vit" in name and side == 192 else {}
    network = open_network(f"timm:{name}", NetworkSettings(arguments=arguments, side=side))
    assert (network.preprocessing.crop, network.preprocessing.resize_shorter) == (side or 224, resize_shorter)


def test_a_saved_program_gives_a_network_of_its_own_side(tmp_path):
    network = open_network(str(saved(tmp_path, side=48)), NetworkSettings())
    assert network.preprocessing.crop == 48
    assert len(network.labels) == 3


@pytest.mark.parametrize(
    ("end", "logits_of"), [(nn.Identity(), nn.Identity()), (nn.Softmax(1), torch.log)], ids=["convolution", "softmax"]
)
def test_a_saved_program_that_does_not_end_in_a_linear_layer_has_its_logits_as_the_feature(tmp_path, end, logits_of):
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), end).eval()
    photo = torch.randn(1, 3, 32, 32)
    torch.export.save(torch.export.export(module, (photo,)), tmp_path / "net.pt2")
    encoder, head, cut = programs_of(open_network(str(tmp_path / "net.pt2"), NetworkSettings()))
    assert cut.layer == ""
    torch.testing.assert_close(head.module(encoder.module(photo))[0], logits_of(module(photo)))


@pytest.mark.parametrize("name", ["metadata", "guards_code", "expr_str"])
def test_a_tensor_with_a_name_of_the_formats_own_is_read(tmp_path, name):
    scope = {}
    exec(f"def forward(self, {name}): return self.layer({name}.mean((2, 3)))", scope)
    net = type("Net", (nn.Module,), {"forward": scope["forward"]})()
    net.layer = nn.Linear(3, 3)
    torch.export.save(torch.export.export(net.eval(), (torch.randn(1, 3, 32, 32),)), tmp_path / "net.pt2")
    photo = torch.randn(1, 3, 32, 32)
    found = open_network(str(tmp_path / "net.pt2"), NetworkSettings()).module(photo)
    torch.testing.assert_close(found, net(photo))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("my_nets:bild", {}, "my_nets has no bild; did you mean build"),
        ("my_netz:build", {}, "my_netz cannot be imported"),
        (":build", {}, "no module cannot be imported"),
        (".nets:build", {}, ".nets cannot be imported"),
        ("half_written:build", {}, "half_written cannot be imported .SyntaxError"),
        ("wrong_name:build", {}, "wrong_name cannot be imported .NameError: name 'nowhere' is not defined"),
        ("tim:resnet18", {}, "did you mean timm:resnet18"),
        ("my_nets:number", {}, "returns int, expected a torch.nn.Module"),
        ("my_nets:broken", {}, "failed with {} .KeyError"),
        ("my_nets:build", {"arguments": {"klasses": 3}}, "failed with .*klasses"),
        ("my_nets:build", {"pretrained": True}, "--pretrained is for timm:NAME"),
        ("my_nets:build", {"preprocessing": {"crop": -1}}, "preprocessing .* cannot be used"),
        ("timm:resnet18z", {}, "no such network; did you mean"),
        ("timm:resnet18.imagenet", {}, r"no weights of that name; its weights are resnet18\.a1_in1k, "),
        ("timm:resnet18", {"arguments": {"pretrained": True}}, "--backbone-arguments pretrained: use --pretrained"),
        ("timm:resnet18", {"arguments": {"checkpoint_path": "w.pth"}}, "use --checkpoint FILE.safetensors"),
        ("timm:resnet18", {"arguments": {"name": 3, "classes": 3}}, "cannot build it with {'name': 3, 'classes': 3}"),
        ("timm:resnet18", {"arguments": {"num_classes": 0}}, "num_classes=0 leaves the network without a classifier"),
        ("timm:local-dir:nowhere", {"pretrained": True}, "expected a folder with config.json that timm saved"),
        ("nowhere.pt2", {}, "nowhere.pt2: no such file"),
    ],
)
def test_a_network_that_cannot_be_had_is_refused(code, text, settings, message):
    (code / "half_written.py").write_text("def build(:\n")
    (code / "wrong_name.py").write_text("build = nowhere\n")
    with pytest.raises(ExportError, match=message):
        open_network(text, NetworkSettings(**settings))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("layer.bias"), "layer.bias is missing"),
        (lambda w: w.update(more=torch.zeros(1)), "more is not the network's"),
        (lambda w: w.update({"layer.weight": torch.zeros(9, 4)}), r"layer.weight is \(9, 4\), the network's \(3, 4\)"),
    ],
)
def test_weights_of_another_network_are_named(code, change, message):
    weights = {n: t.clone() for n, t in open_network("my_nets:build", NetworkSettings()).module.state_dict().items()}
    change(weights)
    save_file(weights, code / "w.safetensors")
    with pytest.raises(ExportError, match=message):
        open_network("my_nets:build", NetworkSettings(checkpoint=code / "w.safetensors"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name: f"module.{name}", "every name in the file begins with 'module.': save it without"),
        (lambda name: f"net.{name}" if "stem" in name else name, "check the name, and the arguments"),
    ],
)
def test_the_message_says_how_weights_under_other_names_would_fit(code, change, message):
    weights = open_network("my_nets:build", NetworkSettings()).module.state_dict()
    save_file({change(name): tensor for name, tensor in weights.items()}, code / "w.safetensors")
    with pytest.raises(ExportError, match=message):
        open_network("my_nets:build", NetworkSettings(checkpoint=code / "w.safetensors"))


def test_the_message_says_how_many_classes_the_weights_have(code):
    weights = open_network("my_nets:build", NetworkSettings(arguments={"classes": 7})).module.state_dict()
    save_file(weights, code / "w.safetensors")
    with pytest.raises(ExportError, match="classifier has 7 classes: set num_classes=7"):
        open_network("my_nets:build", NetworkSettings(checkpoint=code / "w.safetensors"))


def test_weights_that_are_not_there_are_named(code):
    with pytest.raises(ExportError, match="--checkpoint nowhere.safetensors: no such file"):
        open_network("my_nets:build", NetworkSettings(checkpoint=Path("nowhere.safetensors")))


@pytest.fixture
def offline(monkeypatch):
    """What a machine without a network makes of a download."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", ["mobilenetv2_050", "hf-hub:timm/mobilenetv2_050.lamb_in1k"])
def test_without_a_network_the_message_says_which_file_to_fetch_elsewhere(offline, name):
    with pytest.raises(ExportError, match=r"cannot be downloaded .* timm/mobilenetv2_050\.lamb_in1k .*--checkpoint"):
        open_network(f"timm:{name}", NetworkSettings(pretrained=True))


@pytest.mark.slow
def test_published_weights_are_downloaded_by_timm_and_their_hash_is_recorded(tmp_path):
    torch.manual_seed(1)
    weights = timm.create_model("mobilenetv2_050").state_dict()
    code = (
        "from refocus.export.program import NetworkSettings, open_network\n"
        "found = open_network('timm:mobilenetv2_050', NetworkSettings(pretrained=True))\n"
        "print(float(found.module.classifier.weight.double().sum()), found.source['weights_hash'])"
    )
    with weights_hub("timm/mobilenetv2_050.lamb_in1k", save(weights), tmp_path) as own:
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | own, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    total, digest = done.stdout.split()
    assert float(total) == pytest.approx(float(weights["classifier.weight"].double().sum()))
    module = timm.create_model("mobilenetv2_050")
    module.load_state_dict(weights)
    assert digest == weights_hash(module)


def test_a_local_file_stands_in_for_the_download(offline, tmp_path):
    torch.manual_seed(0)
    weights = timm.create_model("mobilenetv2_050").state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    network = open_network(
        "timm:mobilenetv2_050", NetworkSettings(pretrained=True, checkpoint=tmp_path / "w.safetensors")
    )
    assert torch.equal(network.module.state_dict()["classifier.weight"], weights["classifier.weight"])
    assert network.source["checkpoint_sha256"] == hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    assert "weights" not in network.source


@pytest.fixture
def saved_by_timm(tmp_path):
    """A folder as timm saves a fine-tuned network, for the hub or for oneself."""
    small = {"channels": [8, 16, 32, 64], "stem_width": 8}
    network = timm.create_model("resnet10t", num_classes=3, **small)
    about = {"num_classes": 3, "label_names": ["ant", "bee", "cat"]}
    timm.models.save_for_hf(network, tmp_path / "mine", about, small, safe_serialization=True)
    return tmp_path / "mine", network


def test_a_network_that_timm_saved_brings_its_weights_and_labels(saved_by_timm):
    folder, network = saved_by_timm
    found = open_network(f"timm:local-dir:{folder}", NetworkSettings(pretrained=True))
    assert found.name == "mine"
    assert found.labels == ("ant", "bee", "cat")
    assert torch.equal(found.module.fc.weight, network.fc.weight)
    assert found.source["weights_hash"] == weights_hash(found.module)
    assert open_network(f"timm:local-dir:{folder}", NetworkSettings()).source["weights"] == "random"


def test_a_classifier_that_would_be_left_untrained_is_refused(saved_by_timm):
    settings = NetworkSettings(pretrained=True, arguments={"num_classes": 5})
    with pytest.raises(ExportError, match="published weights have 3 classes, num_classes=5 would leave .* untrained"):
        open_network(f"timm:local-dir:{saved_by_timm[0]}", settings)


def test_a_pickle_that_timm_would_read_is_refused(saved_by_timm):
    folder, network = saved_by_timm
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ExportError, match="holds no .safetensors; a pickle from outside is never opened"):
        open_network(f"timm:local-dir:{folder}", NetworkSettings(pretrained=True))


def test_a_pickle_is_never_opened_as_weights(code):
    (code / "w.pt").write_bytes(b"\x80\x04")
    with pytest.raises(ExportError, match="only .safetensors is read"):
        open_network("my_nets:build", NetworkSettings(checkpoint=code / "w.pt"))


@pytest.mark.parametrize(
    ("content", "message"),
    [("ant\nbee\nant\n", "names 'ant' twice"), ("\n\n", "is empty"), (b"\xff\xfe\x00", "expected text in UTF-8")],
)
def test_labels_that_cannot_be_used_are_refused(code, content, message):
    (code / "labels.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ExportError, match=message):
        open_network("my_nets:build", NetworkSettings(labels=code / "labels.txt"))


def changed(path, changes):
    """A saved program of which some members are other ones: a function of what is there, by the end of the name."""
    evil = path.with_name("evil.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(evil, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            change = next((change for end, change in changes.items() if name.endswith(f"/{end}")), bytes)
            new.writestr(name, change(old.read(name)))
    return evil


def of_json(change):
    """A change of a JSON object."""
    return lambda content: json.dumps(change(json.loads(content))).encode()


class Marks:
    """Unpickling one makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def marking(file, **more):
    """Bytes of ``torch.save`` of tensors beside an object that makes a file when it is unpickled."""
    buffer = io.BytesIO()
    torch.save(((torch.zeros(1, 3, 32, 32), Marks(file)), {}), buffer, **more)
    return buffer.getvalue()


def test_a_saved_program_with_a_pickle_in_it_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    def pickled(config):
        next(iter(config["config"].values()))["use_pickle"] = True
        return config

    evil = changed(saved(tmp_path), {"model_weights_config.json": of_json(pickled)})
    monkeypatch.setattr(torch.export, "load", lambda path: pytest.fail("it was loaded"))
    with pytest.raises(ExportError, match="is pickled, and pickles are never opened"):
        open_network(str(evil), NetworkSettings())


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}])
def test_sample_inputs_that_run_code_when_they_are_unpickled_are_refused_and_do_not(tmp_path, how):
    marker = tmp_path / "it ran"
    evil = changed(saved(tmp_path), {"sample_inputs/model.pt": lambda _: marking(marker, **how)})
    with pytest.raises(ExportError, match="sample inputs are not tensors alone .*, and pickles are never opened"):
        open_network(str(evil), NetworkSettings())
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["custom_obj_0", "opaque_obj_0", "weight_0/../weight_1", 3])
def test_a_constant_that_torch_would_unpickle_for_its_name_is_refused(tmp_path, kind):
    def named(config):
        return {"config": {"thing": {"path_name": kind, "is_param": False, "use_pickle": False, "tensor_meta": None}}}

    evil = changed(saved(tmp_path), {"model_constants_config.json": of_json(named)})
    with pytest.raises(ExportError, match="thing is pickled, and pickles are never opened"):
        open_network(str(evil), NetworkSettings())


def test_pickles_beside_the_members_of_a_program_do_not_reach_torch(tmp_path, monkeypatch):
    """Weights and constants of older formats, which torch prefers, and the file of before 2.8, which it falls back on."""
    path, marker = saved(tmp_path), tmp_path / "it ran"
    older = ["serialized_exported_program.json"]
    older += [f"serialized_{what}.pt" for what in ("state_dict", "constants", "example_inputs")]
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        for name in (f"{root}/data/weights/model.pt", f"{root}/data/constants/model.pt", *older):
            archive.writestr(name, marking(marker))
        archive.writestr("version", "8.1")
    seen, load = [], torch.export.load

    def noting(file):
        seen.extend(zipfile.ZipFile(io.BytesIO(file.getvalue())).namelist())
        return load(file)

    monkeypatch.setattr(torch.export, "load", noting)
    assert open_network(str(path), NetworkSettings()).preprocessing.crop == 32
    assert not [name for name in seen if "serialized" in name or name == "version"]
    assert [name for name in seen if name.endswith(".pt")] == ["program/data/sample_inputs/model.pt"]
    assert not marker.exists()


def test_a_program_that_is_replaced_while_it_is_read_is_loaded_as_it_was_checked(tmp_path, monkeypatch):
    path, load = saved(tmp_path), torch.export.load
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(torch.export, "load", lambda file: path.write_bytes(b"another file") and load(file))
    assert open_network(str(path), NetworkSettings()).source["program_sha256"] == digest


@pytest.mark.parametrize("content", [b"[]", b'{"config": []}', b'{"config": {"weight": []}}', b"[" * 100_000, b"\xff"])
def test_a_configuration_of_a_saved_program_that_is_no_object_is_refused(tmp_path, content):
    for name in ("model_weights_config.json", "model_constants_config.json"):
        with pytest.raises(ExportError, match="is not a program of torch.export.save"):
            open_network(str(changed(saved(tmp_path), {name: lambda _: content})), NetworkSettings())


def test_a_graph_of_a_saved_program_that_is_no_object_is_refused(tmp_path):
    evil = changed(saved(tmp_path), {"models/model.json": lambda _: b"[]"})
    with pytest.raises(ExportError, match="is not a program of torch.export.save .*holds a list, expected an object"):
        open_network(str(evil), NetworkSettings())


def rewritten(value, old, new):
    """JSON with another text in the place of one, wherever it stands."""
    if isinstance(value, dict):
        return {rewritten(key, old, new): rewritten(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [rewritten(inner, old, new) for inner in value]
    return new if value == old else value


def for_any_number(tmp_path):
    """A saved program for any number of photos, whose sizes are expressions, and the text of one of them."""
    network = timm.create_model("resnet10t", num_classes=3, channels=[8, 8, 8, 8], stem_width=8).eval()
    free = ({0: torch.export.Dim("photos", min=1, max=8)},)
    program = torch.export.export(network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "free.pt2")
    with zipfile.ZipFile(tmp_path / "free.pt2") as archive:
        (graph,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("models/model.json"))
    return tmp_path / "free.pt2", re.search('"expr_str": "([^"]+)"', graph)[1]


def test_a_program_for_any_number_of_photos_is_read(tmp_path):
    path, size = for_any_number(tmp_path)
    assert size.startswith("Symbol('s")
    network = open_network(str(path), NetworkSettings())
    assert network.module(torch.zeros(3, 3, 32, 32)).shape == (3, 3)


@pytest.mark.parametrize(
    "code",
    ["__import__('pathlib').Path('MARK').touch()", "Add('__import__(\"pathlib\").Path(\"MARK\").touch()', 1)",
     "exec(Symbol('x'))", "Symbol.__new__(Symbol, 's0')", "[Symbol('s0')]", "lambdify(Symbol('x'), 1)"],
)  # fmt: skip
def test_an_expression_of_a_size_that_would_run_as_code_is_refused_and_does_not(tmp_path, code):
    path, size = for_any_number(tmp_path)
    mark = tmp_path / "mark"
    change = of_json(lambda graph: rewritten(graph, size, code.replace("MARK", str(mark))))
    with pytest.raises(ExportError, match="is no expression of sizes; it would run as code"):
        open_network(str(changed(path, {"models/model.json": change})), NetworkSettings())
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    ["Symbol('s77', positive=True, integer=True)", "s77 + 1", "2*s0 - u1", "Max(1, s0)", "Eq(Mod(s0, 2), 0)",
     "Add(FloorDiv(Add(Symbol('s1', integer=True), Integer(-1)), Integer(2)), Integer(1))", "Float('1.5', precision=53)",
     "(s0 >= 1) & (s0 < 8)", "true"],
)  # fmt: skip
def test_expressions_that_torch_writes_are_sizes(text):
    assert saved_program._is_of_sizes(text)


def test_guards_of_a_program_are_left_out_and_do_not_run(tmp_path):
    mark = tmp_path / "mark"
    guard = f"__import__('pathlib').Path({str(mark)!r}).touch() or True"
    evil = changed(saved(tmp_path), {"models/model.json": of_json(lambda graph: graph | {"guards_code": [guard]})})
    network = open_network(str(evil), NetworkSettings())
    network.module(torch.zeros(1, 3, 32, 32))
    assert not mark.exists()


def test_a_name_that_would_end_a_string_in_torchs_code_is_refused(tmp_path):
    def named(graph):
        spec = next(s["parameter"] for s in graph["graph_module"]["signature"]["input_specs"] if "parameter" in s)
        return rewritten(graph, spec["parameter_name"], 'x"), print("')

    with pytest.raises(ExportError, match="is no name, and torch writes names into code"):
        open_network(str(changed(saved(tmp_path), {"models/model.json": of_json(named)})), NetworkSettings())


def test_a_graph_or_sample_inputs_beyond_the_limit_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_program, "_MAX_MEMBER_BYTES", 2000)
    with pytest.raises(ExportError, match=r"models/model.json has \d+ bytes, the limit is 2000"):
        open_network(str(saved(tmp_path)), NetworkSettings())


def test_members_that_unpack_to_more_than_the_file_are_refused(tmp_path):
    path = saved(tmp_path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(10**7) if name.endswith("weight_0") else old.read(name))
    with pytest.raises(ExportError, match="its members are larger than the file"):
        open_network(str(tmp_path / "bomb.pt2"), NetworkSettings())
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/data.pkl", bytes(10**7))
    evil = changed(path, {"sample_inputs/model.pt": lambda _: bomb.getvalue()})
    with pytest.raises(ExportError, match="sample inputs .* its members are larger than the file"):
        open_network(str(evil), NetworkSettings())


def test_a_program_of_another_torch_names_both_versions(tmp_path):
    changes = {"schema_version": {"major": 99, "minor": 1}, "torch_version": "9.1.0+cu999"}
    other = changed(saved(tmp_path), {"models/model.json": of_json(lambda stated: stated | changes)})
    here = torch.__version__.partition("+")[0]
    with pytest.raises(ExportError, match=rf"saved by torch 9\.1\.0 and cannot be read by torch {here}.*save it again"):
        open_network(str(other), NetworkSettings())


def test_a_program_for_several_photos_at_once_is_refused(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    torch.export.save(torch.export.export(network, (torch.randn(5, 3, 32, 32),)), tmp_path / "five.pt2")
    with pytest.raises(ExportError, match="takes 5 photos at once, expected one.*save it again"):
        open_network(str(tmp_path / "five.pt2"), NetworkSettings())


def test_what_is_no_saved_program_is_refused(tmp_path):
    (tmp_path / "x.pt2").write_bytes(b"nothing")
    with pytest.raises(ExportError, match="is not a program of torch.export.save"):
        open_network(str(tmp_path / "x.pt2"), NetworkSettings())
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.randn(1, 4),)), tmp_path / "flat.pt2")
    with pytest.raises(ExportError, match="expected one input of photos"):
        open_network(str(tmp_path / "flat.pt2"), NetworkSettings())


def test_networks_are_told_from_checkpoints(tmp_path):
    assert is_network("timm:resnet18")
    assert is_network("net.pt2")
    assert not is_network("run/seed-0/iciia_t.safetensors")
