"""A schema registry over HTTP, in memory: what Confluent's answers to serializers and deserializers.

Schemas have ids that are the same for the same schema; a subject has versions. Nothing is checked for compatibility.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

__all__ = ["Registry", "registry"]

HELD_S = 20.0  # at most: a client that waits so long on its event loop fails its test
NOT_FOUND = {"subjects": (40401, "Subject not found."), "schemas": (40403, "Schema not found")}


class Registry:
    """Its address, what it was asked, and what it knows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.schemas: list[dict[str, Any]] = []  # the id is the place, from 1
        self.subjects: dict[str, list[int]] = {}
        self.lets_through = threading.Event()
        self.lets_through.set()

    def register(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return self.version(subject, number)

    def version(self, subject: str, number: int) -> dict[str, Any]:
        place = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": place, "id": number, **self.schemas[number - 1]}

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what is found; None: nothing."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match [method, *parts]:
            case ["POST", "subjects", subject, "versions"]:
                assert body is not None
                return self.register(subject, body)
            case ["POST", "subjects", subject]:
                known = [one for one in self.subjects.get(subject, ()) if self.schemas[one - 1] == body]
                return self.version(subject, known[-1]) if known else None
            case ["GET", "subjects", subject, "versions", version]:
                versions = self.subjects.get(subject)
                if not versions:
                    return None
                return self.version(subject, versions[-1 if version == "latest" else int(version) - 1])
            case ["GET", "schemas", "ids", number] if re.fullmatch("[1-9][0-9]*", number):
                place = int(number)
                return self.schemas[place - 1] if place <= len(self.schemas) else None
        return None


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry, until the end."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm: ClassVar[bool] = True

        def answer(self) -> None:
            path = urlsplit(self.path).path
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            known.asked.append(f"{self.command} {path}")
            known.lets_through.wait(HELD_S)
            found = known.answer(self.command, path, body)
            code, text = NOT_FOUND.get(path.split("/")[1], (404, "HTTP 404 Not Found"))
            data = json.dumps({"error_code": code, "message": text} if found is None else found).encode()
            self.send_response(HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815 - http.server's names

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    known = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield known
    finally:
        known.lets_through.set()
        server.shutdown()
        server.server_close()
        thread.join()
