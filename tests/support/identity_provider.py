"""An identity provider over HTTP: tokens for OAuth's client credentials, as the broker of these tests takes them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from tests.support.secured import token

__all__ = ["identity_provider"]


@contextmanager
def identity_provider(client_id: str, client_secret: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield its address, and a function that returns how many tokens it has given."""
    wanted = {"grant_type": ["client_credentials"], "client_id": [client_id], "client_secret": [client_secret]}
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            right = asked == wanted
            if right:
                given.append(token())
            answer = {"access_token": given[-1], "expires_in": 300} if right else {"error": "invalid_client"}
            self.send_response(200 if right else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", lambda: len(given)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
