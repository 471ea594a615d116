"""The example of a web service under a real server, clients that order there, and the processes that it has."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx

from tests.support import admin
from tests.support.example import EXAMPLES

__all__ = ["ENDED", "order", "owners", "served"]

WITHIN_S = 60.0  # the server is up
ANSWERED_WITHIN_S = 20.0
ENDED = {0, -signal.SIGTERM}  # uvicorn by itself ends as the signal would have ended it


@asynccontextmanager
async def served(port: int, servers: str, wal: Path, workers: int) -> AsyncIterator["subprocess.Popen[bytes]"]:
    """The server, until it is ended."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "web_service:app", "--port", str(port)]
    command += ["--workers", str(workers), "--log-level", "warning"]
    environment = os.environ | {"WAL_DIR": str(wal), "KAFKA": servers}
    server = subprocess.Popen(command, env=environment)  # noqa: ASYNC220 - it lasts a moment
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await admin.until(partial(_answers, client), timeout_s=WITHIN_S, what="the server does not answer")
        yield server
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


async def _answers(client: httpx.AsyncClient) -> bool | None:
    with suppress(httpx.TransportError):
        return (await client.get("/ready")).status_code == httpx.codes.OK or None
    return None


async def order(
    port: int, accepted: list[str], goes_on: Callable[[], bool] = lambda: False, *, pause_s: float = 0.0
) -> None:
    """Order until there is no answer; where ``goes_on``, over a new connection."""
    while True:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ANSWERED_WITHIN_S) as client:
            with suppress(httpx.TransportError):
                while True:
                    answer = await client.post("/orders", json={"id": len(accepted), "item": "tea"})
                    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
                    accepted.append(answer.json()["accepted"])
                    await asyncio.sleep(pause_s)
        if not goes_on():
            return


def owners(wal: Path) -> dict[Path, int]:
    """Return the directories that are in use, and the process of each."""
    found: dict[Path, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or of another user
            opened = [link.readlink() for link in (process / "fd").iterdir()]
            found |= {path.parent: int(process.name) for path in opened if path.is_relative_to(wal)}
    return found
