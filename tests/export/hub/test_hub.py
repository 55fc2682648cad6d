"""push and pull give the same bytes, through huggingface_hub and a server that speaks as much of its protocol."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest

from refocus.edge.bundle import load_bundle
from refocus.edge.errors import BundleError, RefocusError
from refocus.export.hub import Place, parse_place, pull_bundle, push_bundle

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'refocus-edge[hub]'")
NAME = "lab/letters"


class Hub(http.server.ThreadingHTTPServer):
    """Keeps one repository: the files of its newest commit."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def commit(self):
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def answer(self, content: bytes, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_json(self, value, status=200):
        self.answer(json.dumps(value).encode(), status, Content_Type="application/json")

    def do_POST(self):
        body, path = self.rfile.read(int(self.headers["Content-Length"])), self.path.split("?")[0]
        if path == "/api/repos/create":
            self.answer_json({"url": f"{self.server.url}/{NAME}", "name": NAME})
        elif path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        elif path.startswith(f"/api/models/{NAME}/preupload/"):
            files = json.loads(body)["files"]
            self.answer_json(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            )
        elif path.startswith(f"/api/models/{NAME}/commit/"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            commit = self.server.commit
            url = f"{self.server.url}/{NAME}/commit/{commit}"
            self.answer_json({"success": True, "commitOid": commit, "commitUrl": url})
        else:
            self.answer_json({"error": "not found"}, 404)

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path.startswith(f"/api/models/{NAME}"):
            siblings = [{"rfilename": name} for name in sorted(self.server.files)]
            self.answer_json(
                {"id": NAME, "sha": self.server.commit, "siblings": siblings, "private": False, "tags": []}
            )
            return
        _, _, _, _, revision, *rest = self.path.split("/")
        content = self.server.files.get("/".join(rest))
        if content is None or not self.path.startswith(f"/{NAME}/resolve/"):
            self.answer(b"", 404, X_Error_Code="EntryNotFound")
        else:
            digest = hashlib.sha256(content).hexdigest()
            self.answer(content, ETag=f'"{digest}"', X_Repo_Commit=revision, Accept_Ranges="none")

    do_HEAD = do_GET


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def contents(folder: Path):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_pulled_is_what_was_pushed(hub, bundle, tmp_path):
    pushed = push_bundle(bundle.folder, Place(NAME), "apache-2.0", ("letters",), endpoint=hub.url)
    pulled = pull_bundle(Place(NAME, pushed.commit), tmp_path / "bundle", pushed.sha256, hub.url)
    assert contents(pulled.folder) == {name: (bundle.folder / name).read_bytes() for name in bundle.files()}
    assert pulled.manifest == bundle.manifest
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_the_card_names_licence_tags_contents_and_the_digest(hub, bundle):
    from huggingface_hub import ModelCard

    pushed = push_bundle(bundle.folder, Place(NAME), "apache-2.0", ("letters",), endpoint=hub.url)
    card = ModelCard(hub.files["README.md"].decode())
    assert card.data.license == "apache-2.0"
    assert {"refocus", "onnxruntime", "letters"} <= set(card.data.tags)
    assert card.data.to_dict()["refocus"]["manifest_sha256"] == pushed.sha256
    assert f"refocus pull hf://{NAME} --out bundle --sha256 {pushed.sha256}" in card.text
    for artifact in bundle.manifest.artifacts:
        assert f"{artifact.size_bytes}" in card.text


@pytest.mark.parametrize("which", ["manifest.json", "program"])
def test_a_changed_byte_is_refused_and_the_earlier_bundle_stays(hub, bundle, tmp_path, which):
    pushed = push_bundle(bundle.folder, Place(NAME), endpoint=hub.url)
    before = contents(pull_bundle(Place(NAME), tmp_path / "bundle", pushed.sha256, hub.url).folder)
    name = which if which == "manifest.json" else bundle.manifest.artifacts[0].file
    content = bytearray(hub.files[name])
    content[len(content) // 2] ^= 1
    hub.files[name] = bytes(content)
    with pytest.raises(RefocusError, match="holds another bundle|was changed"):
        pull_bundle(Place(NAME), tmp_path / "bundle", pushed.sha256, hub.url)
    assert contents(tmp_path / "bundle") == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_files_that_no_manifest_lists_are_not_fetched(hub, bundle, tmp_path):
    push_bundle(bundle.folder, Place(NAME), endpoint=hub.url)
    hub.files |= {"huge.bin": b"x", "../escape": b"x", "pickle.pt": b"x"}
    pull_bundle(Place(NAME), tmp_path / "bundle", endpoint=hub.url)
    assert not [path for path in hub.asked if "huge" in path or "escape" in path or "pickle" in path]
    load_bundle(tmp_path / "bundle")


def test_a_repository_without_a_bundle_is_named(hub, tmp_path):
    hub.files["weights.bin"] = b"x"
    with pytest.raises(RefocusError, match=r"holds no bundle: manifest\.json is not among its files"):
        pull_bundle(Place(NAME), tmp_path / "bundle", endpoint=hub.url)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_bundle_is_not_replaced(hub, bundle, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(RefocusError, match="mine is not replaced: it is not a bundle"):
        pull_bundle(Place(NAME), tmp_path / "mine", endpoint=hub.url)


@pytest.mark.parametrize("name", ["notes.txt", ".git/HEAD"])
def test_a_bundle_with_other_files_in_it_is_not_replaced(hub, bundle, tmp_path, name):
    push_bundle(bundle.folder, Place(NAME), endpoint=hub.url)
    out = pull_bundle(Place(NAME), tmp_path / "bundle", endpoint=hub.url).folder
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before, asked = contents(out), list(hub.asked)
    with pytest.raises(RefocusError, match=f"holds {name}, which is no file of its bundle"):
        pull_bundle(Place(NAME), out, endpoint=hub.url)
    assert contents(out) == before
    assert hub.asked == asked
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_whose_manifest_is_somebody_elses_is_not_replaced(hub, bundle, tmp_path):
    push_bundle(bundle.folder, Place(NAME), endpoint=hub.url)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"name": "My web app", "start_url": "/"}')
    with pytest.raises(RefocusError, match="site is not replaced: .* or choose another folder"):
        pull_bundle(Place(NAME), tmp_path / "site", endpoint=hub.url)
    assert contents(tmp_path / "site") == {"manifest.json": b'{"name": "My web app", "start_url": "/"}'}


def test_a_pulled_bundle_is_on_the_disk_before_the_earlier_one_is_gone(hub, bundle, tmp_path, durably_replaced):
    import shutil

    push_bundle(bundle.folder, Place(NAME), endpoint=hub.url)
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    assert durably_replaced(pull_bundle(Place(NAME), tmp_path / "bundle", endpoint=hub.url).folder)


def test_a_name_that_the_hub_does_not_allow_is_one_clear_line(refocus, hub, bundle, tmp_path, assert_one_clear_line):
    place = "hf://org/my--bundle"
    for arguments in (("pull", place, "--out", tmp_path / "b"), ("push", bundle.folder, place)):
        done = refocus(*arguments, "--endpoint", hub.url)
        assert_one_clear_line(done, f"{place} is no name of a repository (Cannot have -- or ..")
        assert done.returncode == 1
    assert not hub.asked
    assert not list(tmp_path.iterdir())


def test_without_a_network_one_line_says_so(refocus, bundle, tmp_path, assert_one_clear_line, free_port):
    nobody = f"http://127.0.0.1:{free_port()}"
    assert_one_clear_line(
        refocus("pull", f"hf://{NAME}", "--out", tmp_path / "b", "--endpoint", nobody), "cannot be reached"
    )
    assert_one_clear_line(refocus("push", bundle.folder, f"hf://{NAME}", "--endpoint", nobody), "cannot be reached")
    assert not list(tmp_path.iterdir())


def test_the_commands_push_and_pull(refocus, hub, bundle, tmp_path):
    done = refocus("push", bundle.folder, f"hf://{NAME}", "--endpoint", hub.url, "--json")
    assert done.returncode == 0, done.stderr
    sha256 = json.loads(done.stdout)["sha256"]
    out = tmp_path / "bundle"
    done = refocus("pull", f"hf://{NAME}", "--out", out, "--sha256", sha256, "--endpoint", hub.url)
    assert done.returncode == 0, done.stderr
    assert "every file verified" in done.stdout


@pytest.mark.parametrize("text", ["lab/letters", "hf://letters", "hf://lab/letters@", "https://lab/letters"])
def test_another_notation_is_refused(text):
    with pytest.raises(RefocusError, match="expected hf://ORGANISATION/NAME"):
        parse_place(text)


def test_a_damaged_bundle_is_not_pushed(hub, bundle, tmp_path):
    import shutil

    shutil.copytree(bundle.folder, tmp_path / "bundle")
    (tmp_path / "bundle" / bundle.manifest.artifacts[0].file).write_bytes(b"")
    with pytest.raises(BundleError):
        push_bundle(tmp_path / "bundle", Place(NAME), endpoint=hub.url)
    assert not hub.files
