"""The retraining as a workflow template for Argo on Kubernetes: the same flow, each step a pod.

All steps see one volume: the folder of the pipeline with its runs, records and photos. Metaflow keeps only its own
small records in an S3-compatible store. The image has ``refocus-edge[cpu,pipeline]`` installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import PipelineError, UsageError
from refocus.cloud_train.pipeline.run import FLOW, check_installed, environment, retry_flags


@dataclass(frozen=True)
class Cluster:
    """Where the steps run.

    Attributes:
        image: with ``refocus-edge[cpu,pipeline]``, of the version that prepares the runs.
        claim: name of the persistent volume claim that every step mounts.
        mount: where they mount it.
        store: for Metaflow's records and the flow's code, as "s3://bucket/refocus".
        endpoint: of a store other than Amazon's; "" for Amazon's.
        secret: name of the Kubernetes secret with the store's credentials; "" where pods have a role.
        namespace: of Kubernetes.
        cpu: processors of a step.
        memory: of a step, in MB.
    """

    image: str
    claim: str
    mount: str
    store: str
    endpoint: str = ""
    secret: str = ""
    namespace: str = "default"
    cpu: int = 2
    memory: int = 8192


def workflow_template(cluster: Cluster, retries: int = 0) -> dict[str, Any]:
    """Argo's ``WorkflowTemplate`` of the flow; it takes the folder of a run as its parameter ``work``.

    The code of the flow is put into the store, where the steps fetch it. Nothing is sent to a cluster.

    Args:
        retries: of a step that failed.

    Raises:
        UsageError: the store or the mount is none.
        PipelineError: the store refuses, or a tool of Metaflow's is missing.
    """
    if not cluster.store.startswith("s3://"):
        raise UsageError(f"--store {cluster.store}: expected an S3-compatible store, such as s3://bucket/refocus")
    if not cluster.mount.startswith("/"):
        raise UsageError(f"--mount {cluster.mount}: expected an absolute path")
    check_installed("kubernetes")
    pod = {
        "image": cluster.image,
        "cpu": cluster.cpu,
        "memory": cluster.memory,
        "namespace": cluster.namespace,
        "persistent_volume_claims": json.dumps({cluster.claim: cluster.mount}),
    }
    pod |= {"secrets": cluster.secret} if cluster.secret else {}
    with tempfile.TemporaryDirectory() as scratch:
        store = {
            "METAFLOW_DEFAULT_DATASTORE": "s3",
            "METAFLOW_DATASTORE_SYSROOT_S3": cluster.store,
            "METAFLOW_KUBERNETES_NAMESPACE": cluster.namespace,
            # A store that cannot be reached is told in seconds; Metaflow's own patience is twenty minutes.
            "METAFLOW_S3_RETRY_COUNT": "1",
            "METAFLOW_S3_TRANSIENT_RETRY_COUNT": "1",
            "METAFLOW_S3_CLIENT_RETRY_CONFIG": '{"max_attempts": 2, "mode": "standard"}',
            **({"METAFLOW_S3_ENDPOINT_URL": cluster.endpoint} if cluster.endpoint else {}),
        }
        settings = "kubernetes:" + ",".join(f"{name}={value}" for name, value in pod.items())
        options = "--no-pylint", "--datastore", "s3", "--with", settings, *retry_flags(retries)
        command = [sys.executable, str(FLOW), *options, "argo-workflows", "create", "--only-json"]
        done = subprocess.run(  # noqa: S603  # our own file
            command, capture_output=True, text=True, check=False, cwd=scratch, env=environment(Path(scratch)) | store
        )
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise PipelineError(f"no workflow template: {' '.join(last[-3:])}")
    return json.loads(done.stdout)
