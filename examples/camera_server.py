"""A server that recognises posted photos, each person's with their own history. Standard library and Refocus alone.

    python camera_server.py bundle --profiles profiles
    curl --data-binary @photo.jpg "http://127.0.0.1:8430/recognise?profile=anna"

The answer is JSON: label, the most likely labels, and how far the history was trusted. There is no authentication and no
TLS: keep it on 127.0.0.1, or behind a proxy that has both.
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from refocus import PhotoError, Recognizer, RefocusError
from refocus.edge import Answer

MOST_BYTES = 32 * 2**20
MOST_OPEN = 8  # recognisers that are kept, each with a loaded program
PROFILE = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class Server(ThreadingHTTPServer):
    """One recogniser per profile. A recogniser with a profile is for one thread, so one worker recognises all photos."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], bundle: Path, profiles: Path) -> None:
        self.bundle, self.profiles = bundle, profiles
        self.opened: dict[str, Recognizer] = {}
        self.worker = ThreadPoolExecutor(1)
        Recognizer.open(bundle).close()  # a bundle that cannot be used stops the server at its start
        super().__init__(address, Handler)

    def recognise(self, profile: str, photo: bytes) -> dict[str, object]:
        """The answer to a photo, which becomes part of the profile's history."""
        answer = self.worker.submit(self._recognise, profile, photo).result()
        top = [[label, round(float(probability), 4)] for label, probability in answer.top(5)]
        return {"profile": profile, "label": answer.label, "top": top, "trust": round(float(answer.trust), 4)}

    def _recognise(self, profile: str, photo: bytes) -> Answer:
        recognizer = self.opened.pop(profile, None)
        if recognizer is None:
            while len(self.opened) >= MOST_OPEN:
                self.opened.pop(next(iter(self.opened))).close()  # the one that was used longest ago
            recognizer = Recognizer.open(self.bundle, profile=profile, profiles=self.profiles)
        self.opened[profile] = recognizer
        return recognizer.recognize(photo)

    def server_close(self) -> None:
        super().server_close()
        self.worker.submit(self._close).result()
        self.worker.shutdown()

    def _close(self) -> None:
        for recognizer in self.opened.values():
            recognizer.close()
        self.opened.clear()


class Handler(BaseHTTPRequestHandler):
    """POST /recognise?profile=NAME with a photo as the body; GET /healthz."""

    server: Server
    timeout = 30

    def do_GET(self) -> None:
        found = self.path == "/healthz"
        self.answer(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, {"ok": found})

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        profile = parse_qs(url.query).get("profile", [""])[0]
        length = self.headers.get("Content-Length", "")
        if url.path != "/recognise":
            self.refuse(HTTPStatus.NOT_FOUND, f"{url.path} is unknown; POST a photo to /recognise?profile=NAME")
        elif not PROFILE.fullmatch(profile):
            self.refuse(
                HTTPStatus.BAD_REQUEST, "profile: expected 1 to 40 of a-z, 0-9 and -, beginning with a letter or digit"
            )
        elif not length.isdecimal() or not 0 < int(length) <= MOST_BYTES:
            self.refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a photo of 1 to {MOST_BYTES} bytes is expected as the body"
            )
        else:
            self.recognise(profile, self.rfile.read(int(length)))

    def recognise(self, profile: str, photo: bytes) -> None:
        try:
            self.answer(HTTPStatus.OK, self.server.recognise(profile, photo))
        except PhotoError as error:
            self.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except RefocusError as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # the body may not have been read
        self.answer(status, {"error": why})

    def answer(self, status: HTTPStatus, document: dict[str, object]) -> None:
        content = json.dumps(document, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Requests name people: nothing is logged."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Recognises posted photos.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--profiles", type=Path, default=Path("profiles"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8430)
    given = parser.parse_args()
    server = Server((given.host, given.port), given.bundle, given.profiles)
    print(f"http://{given.host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
