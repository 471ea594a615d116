"""For Litestar: a lifespan, a dependency, the answer to a full ring, and probes.

>>> app = Litestar(  # doctest: +SKIP
...     [take, *probes],
...     lifespan=[lifespan("wal", bootstrap_servers="localhost:9092")],
...     dependencies={"producer": Provide(get_producer)},
...     exception_handlers=exception_handlers,
... )
"""

from typing import Any

from aiorecover.extras import extra

with extra("litestar"):
    from litestar import Request, Response, get
    from litestar.datastructures import State
    from litestar.di import NamedDependency

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

__all__ = ["ProducerDep", "exception_handlers", "get_producer", "lifespan", "probes"]

ProducerDep = NamedDependency[RecoverableProducer]
"""The type of a parameter named as in ``dependencies``, which is to be the producer."""


async def get_producer(request: Request[Any, Any, State]) -> RecoverableProducer:
    """Return the producer of the application that serves this request.

    Raises:
        RecoverError: the application was not given a `lifespan`, or it was not entered.

    """
    return producer_of(request.app)


@get("/live", include_in_schema=False)
async def _live(request: Request[Any, Any, State]) -> Response[dict[str, Any]]:
    good, payload = live(producer_of(request.app))
    return Response(payload, status_code=200 if good else 503)


@get("/ready", include_in_schema=False)
async def _ready(request: Request[Any, Any, State]) -> Response[dict[str, Any]]:
    good, payload = ready(producer_of(request.app))
    return Response(payload, status_code=200 if good else 503)


def _answer_not_accepted(_request: Request[Any, Any, State], _error: Exception) -> Response[dict[str, str]]:
    return Response({"detail": TRY_AGAIN}, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})


def _answer_too_large(_request: Request[Any, Any, State], _error: Exception) -> Response[dict[str, str]]:
    return Response({"detail": TOO_LARGE}, status_code=413)


exception_handlers: dict[int | type[Exception], Any] = {
    **dict.fromkeys(NOT_ACCEPTED, _answer_not_accepted),
    RecordTooLargeError: _answer_too_large,
}
"""503 with ``Retry-After`` where the ring is full, or the producer stops; 413 where the record is too large.

Nothing was stored.
"""

probes = [_live, _ready]
"""``/live``: 503 where only a restart helps. ``/ready``: 200 while records are accepted, also without Kafka."""
