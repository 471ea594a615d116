"""For Starlette: a lifespan, the answer to a full ring, and probes.

>>> app = Starlette(  # doctest: +SKIP
...     lifespan=lifespan("wal", bootstrap_servers="localhost:9092"),
...     exception_handlers=exception_handlers,
...     routes=[*probes, Route("/orders", take, methods=["POST"])],
... )
"""

from collections.abc import Callable, Coroutine
from typing import Any

from aiorecover.extras import extra

with extra("starlette"):
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

from aiorecover import RecordTooLargeError, RecoverableProducer
from aiorecover.integrations.web import (
    NOT_ACCEPTED,
    RETRY_AFTER_S,
    TOO_LARGE,
    TRY_AGAIN,
    lifespan,
    live,
    producer_of,
    ready,
)

__all__ = ["answer_live", "answer_ready", "exception_handlers", "get_producer", "lifespan", "probes"]


async def get_producer(connection: HTTPConnection) -> RecoverableProducer:
    """Return the producer of the application that serves this request, or this WebSocket.

    Raises:
        RecoverError: the application was not given a `lifespan`, or it was not entered.

    """
    return producer_of(connection.app)


async def answer_live(request: Request) -> Response:
    """Answer 200, or 503 where only a restart helps."""
    return _answer(*live(producer_of(request.app)))


async def answer_ready(request: Request) -> Response:
    """Answer 200 while records are accepted, also without Kafka; else 503."""
    return _answer(*ready(producer_of(request.app)))


def _answer(good: bool, payload: dict[str, Any]) -> Response:  # noqa: FBT001 - as live and ready return it
    return JSONResponse(payload, 200 if good else 503)


async def _answer_not_accepted(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"detail": TRY_AGAIN}, 503, {"Retry-After": str(RETRY_AFTER_S)})


async def _answer_too_large(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"detail": TOO_LARGE}, 413)


exception_handlers: dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    **dict.fromkeys(NOT_ACCEPTED, _answer_not_accepted),
    RecordTooLargeError: _answer_too_large,
}
"""503 with ``Retry-After`` where the ring is full, or the producer stops; 413 where the record is too large.

Nothing was stored.
"""

probes = [Route("/live", answer_live), Route("/ready", answer_ready)]
"""``/live`` and ``/ready``."""
