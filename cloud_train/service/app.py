"""The service's endpoints."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from refocus.cloud_train.service.guard import Bounds, Guard, Metrics
from refocus.edge.bundle import REQUEST, Asked, Bundle, pack, sign, sign_statement
from refocus.edge.errors import BundleError, RuntimeUnavailable, TaskError
from refocus.edge.taper import Bank, Task, describe_task

STATEMENT = "Refocus-Statement"
SIGNATURE = "Refocus-Signature"  # of the file alone, for devices of release 0.1.0
NO_ROOM = "no room for another bundle on the server's disk; try again in ten seconds"
Name = Annotated[str, Field(min_length=1, max_length=200)]


class TaskRequest(BaseModel):
    """What a personal model is to be for: names of classes, or free words, or both."""

    model_config = ConfigDict(extra="forbid")
    classes: list[Name] = Field(default=[], max_length=5000, examples=[["red fox", "grey fox"]])
    description: str = Field(default="", max_length=2000, description="free words; if the service describes")
    domain: str = Field(default="", max_length=100)
    targets: list[Name] = Field(default=[], max_length=32, description="as onnxruntime:fp32; default: all there are")
    request: str = Field(
        default="",
        pattern=rf"^({REQUEST})?$",
        max_length=64,
        description=("identifier that the device drew for this request; it is signed with the answer"),
    )


class BankInfo(BaseModel):
    """What can be asked for."""

    bank: str
    classes: list[str]
    domains: list[str]
    targets: list[str]


class Problem(BaseModel):
    """Why there is no answer, and what to do."""

    detail: Any


@dataclass(frozen=True)
class Service:
    """One bank, a key, and how much is done at once.

    Attributes:
        scratch: folder for bundles while they are made and sent.
        workers: bundles that are made at once; each needs the memory of a few blocks, not of a bundle.
        describes: whether free words are taken, which needs the bank's sentence encoder.
        valid_s: seconds in which a device may install a bundle.
    """

    bank: Bank
    key: Ed25519PrivateKey
    scratch: Path
    workers: int = 2
    describes: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    valid_s: int = 3600

    def task(self, asked: TaskRequest) -> Task:
        """The task that was asked for.

        Raises:
            TaskError: as :meth:`refocus.edge.taper.bank.Bank.task`; or free words, which this service does not take.
        """
        if not asked.description:
            return self.bank.task(asked.classes, asked.domain)
        if not self.describes:
            raise TaskError("this service accepts class names only; omit the description")
        vector: np.ndarray = describe_task(asked.description, asked.domain, self.bank.card)
        self.bank.check_description(vector, asked.description, asked.domain)
        return self.bank.task(vector, asked.domain, asked.classes, asked.description)

    def make(self, asked: TaskRequest, folder: Path) -> tuple[Path, dict[str, str]]:
        """Condenses, packs and signs: the file to send, and headers with its statement and signature."""
        done = self.bank.condense(self.task(asked), folder / "bundle", asked.targets)
        archive = folder / "bundle.tar"
        pack(Bundle(done.folder, done.manifest), archive)
        shutil.rmtree(done.folder)
        statement = sign_statement(archive, self.key, Asked(asked.request, self.bank.card.sha256), self.valid_s)
        return archive, {STATEMENT: statement, SIGNATURE: sign(archive, self.key)}


def create_app(service: Service, tokens: Sequence[str]) -> Guard:
    """The service as an ASGI application."""
    metrics = Metrics()
    # Without the pages that would load scripts from elsewhere.
    app = FastAPI(title="Refocus: personal models", docs_url=None, redoc_url=None)
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (400, 401, 408, 411, 413, 422, 429, 503)
    }
    limiter = anyio.CapacityLimiter(service.workers)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def health() -> str:
        """Whether the process lives; needs no token."""
        return "ok"

    @app.get("/metrics", response_class=PlainTextResponse, responses=problems)
    async def tell() -> str:
        """Counts and times, in Prometheus' text format."""
        return metrics.text()

    @app.get("/v1/bank", responses=problems)
    async def bank() -> BankInfo:
        """What can be asked for."""
        has = dict.fromkeys(artifact.target for artifact in service.bank.manifest.artifacts)
        return BankInfo(
            bank=service.bank.card.sha256,
            classes=list(service.bank.labels),
            domains=list(service.bank.card.domains),
            targets=list(has),
        )

    content = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}

    @app.post("/v1/condense", response_class=FileResponse, responses={**problems, 200: {"content": content}})
    async def condense(asked: TaskRequest) -> FileResponse:
        """A personal bundle for a task, as a tar; what is signed of it is in the header Refocus-Statement."""
        folder = Path(tempfile.mkdtemp(dir=service.scratch))
        try:
            archive, signed = await anyio.to_thread.run_sync(service.make, asked, folder, limiter=limiter)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, (TaskError, BundleError, RuntimeUnavailable)):
                raise HTTPException(422, str(error)) from None
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise HTTPException(503, NO_ROOM, {"Retry-After": "10"}) from None
            raise
        return FileResponse(
            archive,
            media_type="application/x-tar",
            filename="bundle.tar",
            headers=signed,
            background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
        )

    return Guard(app, tokens, service.bounds, metrics)
