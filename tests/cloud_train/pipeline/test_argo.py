"""The workflow template for Argo: every step of the flow, in its order, on one volume; made without a cluster."""

from __future__ import annotations

import http.server
import importlib.util
import itertools
import threading

import pytest

from refocus.cloud_train.errors import PipelineError, UsageError
from refocus.cloud_train.pipeline.run import prepare_run

INSTALLED = all(importlib.util.find_spec(name) for name in ("metaflow", "mlflow", "kubernetes"))
needs_extra = pytest.mark.skipif(not INSTALLED, reason="needs refocus-edge[argo]")


class Store(http.server.BaseHTTPRequestHandler):
    """As much of S3 as is asked for: whole objects, put and looked up."""

    objects: dict[str, bytes]

    def do_PUT(self):
        self.objects[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200)

    def do_HEAD(self):
        self._answer(200 if self.path in self.objects else 404)

    def _answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    handler = type("OneStore", (Store,), {"objects": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.objects
        server.shutdown()


@needs_extra
@pytest.mark.slow
def test_the_workflow_has_every_step_in_order_on_the_volume_and_stops_where_a_gate_refuses(store):
    from refocus.cloud_train.pipeline.argo import Cluster, workflow_template

    endpoint, objects = store
    template = workflow_template(Cluster("refocus:1", "photos", "/refocus", "s3://bucket/refocus", endpoint, "keys"), 2)
    assert template["kind"] == "WorkflowTemplate"
    assert [each["name"] for each in template["spec"]["arguments"]["parameters"]] == ["work"]
    templates = {each["name"]: each for each in template["spec"]["templates"]}
    tasks = {each["name"]: each for each in templates["RefocusFlow"]["dag"]["tasks"]}
    after = {name: task.get("depends", "") for name, task in tasks.items()}
    chain = ["start", "features", "train", "evaluate", "gate", "plan"]
    for earlier, later in itertools.pairwise(chain):
        assert after[later] == f"{earlier}.Succeeded"
    for gate, accepted, refused in (("gate", "plan", "refuse-people"), ("parity", "benchmark", "refuse-programs"),
                                    ("benchmark", "card", "refuse-cost")):  # fmt: skip
        for then in (accepted, refused):
            assert after[then] == f"{gate}.Succeeded"
            assert f"== '{then.replace('-', '_')}'" in tasks[then]["when"]
    assert after["release"] == "card.Succeeded"
    assert set(after["end"].split(" || ")) == {
        f"{name}.Succeeded" for name in ("release", "refuse-people", "refuse-programs", "refuse-cost")
    }
    [fanned] = templates["plan-foreach-targets"]["dag"]["tasks"]
    assert fanned["name"] == "export"
    for name in (*tasks.keys() - {"plan-foreach-targets"}, "export"):
        container = templates[name]["container"]
        assert container["image"] == "refocus:1"
        assert ("photos", "/refocus") in [(volume["name"], volume["mountPath"]) for volume in container["volumeMounts"]]
        assert [found["secretRef"]["name"] for found in container["envFrom"]] == ["keys"]
        assert int(templates[name]["retryStrategy"]["limit"]) == 2
    assert len([path for path in objects if path.startswith("/bucket/refocus/RefocusFlow/data/")]) == 1


@needs_extra
@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_told(store, monkeypatch):
    from refocus.cloud_train.pipeline.argo import Cluster, workflow_template

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(PipelineError, match=r"no workflow template: .*127\.0\.0\.1:9"):
        workflow_template(Cluster("refocus:1", "photos", "/refocus", "s3://bucket/refocus", "http://127.0.0.1:9"))


def test_what_is_no_store_and_no_mount_is_told():
    from refocus.cloud_train.pipeline.argo import Cluster, workflow_template

    with pytest.raises(UsageError, match="--store bucket: expected an S3-compatible store"):
        workflow_template(Cluster("refocus:1", "photos", "/refocus", "bucket"))
    with pytest.raises(UsageError, match="--mount refocus: expected an absolute path"):
        workflow_template(Cluster("refocus:1", "photos", "refocus", "s3://bucket/refocus"))


@needs_extra
@pytest.mark.slow
def test_a_prepared_run_is_begun_and_only_one_at_a_time(tmp_path):
    (tmp_path / "pipeline.toml").write_text("")
    work = prepare_run(tmp_path / "pipeline.toml", tmp_path / "p")
    assert (work.name, sorted(path.name for path in work.iterdir())) == ("0001", ["begun.json", "pipeline.json"])
    with pytest.raises(UsageError, match="was interrupted"):
        prepare_run(tmp_path / "pipeline.toml", tmp_path / "p")
