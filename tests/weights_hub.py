"""A model hub on the loopback address with the weights of one network: what ``--pretrained`` downloads in tests."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class _PublishedWeights(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a download of one model's weights needs."""

    content, place = b"", ""

    def do_GET(self):
        found = self.path == self.place
        self.send_response(200 if found else 404)
        content = self.content if found else b""
        about = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": "0" * 40}
        for name, value in {"Content-Length": str(len(content)), **(about if found else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def weights_hub(repository: str, content: bytes, cache: Path) -> Iterator[dict[str, str]]:
    """Serves ``model.safetensors`` of a repository; gives the environment variables that lead a download there."""
    place = f"/{repository}/resolve/main/model.safetensors"
    handler = type("Weights", (_PublishedWeights,), {"content": content, "place": place})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{hub.server_port}"
        yield {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
        hub.shutdown()
