"""What runs inside NVFlare's processes: the server's loop and the client's answers, as objects of its Collab API.

These are the only classes that a client's kit lets a job name (:mod:`refocus.cloud_train.federated.deployment.kits`),
and they are installed where they run: no code travels. Messages are bytes (safetensors, JSON) and plain values.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from refocus.cloud_train.federated.deployment.session import run_session
from refocus.cloud_train.federated.deployment.site import Site
from refocus.cloud_train.federated.deployment.sites import read_site
from refocus.cloud_train.federated.deployment.wire import SILENT
from refocus.cloud_train.progress import say
from refocus.edge.commands import show_news
from refocus.edge.errors import RefocusError

LOOK_S = 5.0  # after which clients that have not answered yet are asked how they are, again and again
MISSED = 2  # such questions in a row without an answer, and a client is lost


class FlareServer:
    """The server's side of a session.

    Args:
        folder: of the deployed run, on the server's disk.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @collab.main
    def run(self) -> None:
        run_session(self._folder, [client.name for client in collab.clients], ask)


def ask(
    method: str, arguments: Mapping[str, Mapping[str, Any]], timeout: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """:class:`refocus.cloud_train.federated.deployment.wire.Ask` by NVFlare: all calls are under way at once."""
    calls, failed = {}, {}
    for name, own in arguments.items():
        try:
            group = collab.get_clients([name])(blocking=False, timeout=timeout)
            calls[name] = getattr(group, method)(**own)
        except Exception as error:  # NVFlare has no common type; one client must not end the round of all
            failed[name] = _reason(error)
    silent = _waited(calls) if method != "status" else set()
    heard = [call for name, call in calls.items() if name not in silent]
    answers = {name: value for call in heard for name, value in call}
    failed |= {name: _reason(error) for call in heard for name, error in call.failures.items()}
    return answers, failed | dict.fromkeys(silent, SILENT)


def _waited(calls: Mapping[str, Any]) -> set[str]:
    """Waits until every call has come back or timed out. Meanwhile clients are asked how they are, and those that say
    nothing time and again are not waited for: a machine that died would cost all others the whole deadline."""
    missed, next_look = Counter[str](), time.monotonic() + LOOK_S
    while waiting := [n for n, call in calls.items() if not (len(call) or call.failures or missed[n] >= MISSED)]:
        time.sleep(0.02)
        if time.monotonic() > next_look:
            answers, _ = ask("status", {name: {} for name in waiting}, LOOK_S)
            for name in waiting:
                missed[name] = 0 if name in answers else missed[name] + 1
            next_look = time.monotonic() + LOOK_S
    return {name for name, call in calls.items() if missed[name] >= MISSED and not len(call)}


def _reason(error: Exception) -> str:
    cause = getattr(error, "cause", error)
    return f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else str(cause)


class FlareClient:
    """The client's side: answers calls one after the other, and says how it is at any time.

    What goes wrong is told here, in full; the server learns its kind alone, for a message may name photos.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._site: Site | None = None

    @collab.init
    def start(self) -> None:
        show_news()
        self._site = read_site(Path(collab.workspace.get_root_dir()), collab.site_name)

    @collab.publish
    def status(self) -> dict[str, Any]:
        return {"busy": self._lock.locked()}

    @collab.publish
    def begin(self, plan: bytes) -> dict[str, Any]:
        return self._answer(lambda site: site.begin(plan))

    @collab.publish
    def take(self, content: bytes) -> dict[str, Any]:
        return self._answer(lambda site: site.take(content))

    @collab.publish
    def join(self) -> dict[str, Any]:
        return self._answer(lambda site: site.join())

    @collab.publish
    def train(self, number: int, payload: bytes) -> dict[str, Any]:
        def trained(site: Site) -> dict[str, Any]:
            say(f"{site.name}: round {number}, {len(payload):,} bytes came")
            tensors, photos = site.train(number, payload)
            say(f"{site.name}: round {number}, trained on {photos} photos, {len(tensors):,} bytes go")
            return {"number": number, "tensors": tensors, "photos": photos}

        return self._answer(trained)

    @collab.publish
    def validation(self, number: int, payload: bytes) -> dict[str, Any]:
        return self._answer(lambda site: site.validation(number, payload))

    @collab.publish
    def judged(self, after: int, payload: bytes, base: bytes) -> dict[str, Any]:
        return self._answer(lambda site: site.judged(after, payload, base))

    def _answer(self, work: Callable[[Site], Any]) -> dict[str, Any]:
        with self._lock:
            try:
                if self._site is None:
                    return {"refused": "not started"}
                return {"answer": work(self._site)}
            except RefocusError as error:
                say(f"{self._site.name if self._site else 'client'}: {error}")
                return {"refused": type(error).__name__}
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                return {"refused": type(error).__name__}
