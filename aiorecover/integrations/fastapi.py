"""For FastAPI: a lifespan, a dependency, the answer to a full ring, probes, and a router for dead letters.

>>> app = FastAPI(  # doctest: +SKIP
...     lifespan=lifespan("wal", bootstrap_servers="localhost:9092"), exception_handlers=exception_handlers
... )
>>> app.include_router(probes)  # doctest: +SKIP
"""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec

from aiorecover.extras import extra

with extra("fastapi"):
    from fastapi import APIRouter, Depends, HTTPException, Query
    from fastapi.responses import StreamingResponse

from aiorecover import ConfigError, RecoverableProducer, WalFullError
from aiorecover.integrations.starlette import answer_live, answer_ready, exception_handlers, get_producer
from aiorecover.integrations.web import RETRY_AFTER_S, TRY_AGAIN, lifespan

__all__ = ["ProducerDep", "dead_letters_router", "exception_handlers", "get_producer", "lifespan", "probes"]

ALL = "all"
LETTERS = 100  # in one answer, unless the client wants another number

ProducerDep = Annotated[RecoverableProducer, Depends(get_producer)]
"""The type of a parameter that is to be the producer; tests replace it by ``dependency_overrides[get_producer]``."""

probes = APIRouter(include_in_schema=False)
"""``/live`` and ``/ready``; ``include_router(probes, prefix=...)`` puts them elsewhere."""
probes.add_api_route("/live", answer_live)
probes.add_api_route("/ready", answer_ready)

RecordId = Annotated[str, Query(description='of one letter, or "all"')]


def dead_letters_router(allow: Callable[..., Any]) -> APIRouter:
    """Return a router for ``/dead-letters``: list, requeue and purge what Kafka refused for good.

    Each worker answers for its own directory.

    Args:
        allow: a dependency of yours, that raises ``HTTPException`` where the client may not do that.

    """
    router = APIRouter(prefix="/dead-letters", tags=["dead letters"], dependencies=[Depends(allow)])
    router.add_api_route("", _list, methods=["GET"], response_class=StreamingResponse)
    router.add_api_route("/requeue", _requeue, methods=["POST"])
    router.add_api_route("", _purge, methods=["DELETE"])
    return router


async def _list(producer: ProducerDep, limit: Annotated[int, Query(ge=1)] = LETTERS) -> StreamingResponse:
    """Return the oldest letters: a JSON object a line, bytes as base64."""
    return StreamingResponse(_lines(producer, limit), media_type="application/x-ndjson")


async def _lines(producer: RecoverableProducer, limit: int) -> AsyncIterator[bytes]:
    async for letter in producer.dead_letters.list():
        yield msgspec.json.encode(letter) + b"\n"
        limit -= 1
        if not limit:
            return


async def _requeue(producer: ProducerDep, record_id: RecordId) -> dict[str, int]:
    """Publish a letter, or all of them, again, under new ids."""
    try:
        number = await producer.dead_letters.requeue(None if record_id == ALL else record_id)
    except ConfigError as error:
        raise HTTPException(422, str(error)) from None
    except WalFullError:
        raise HTTPException(503, TRY_AGAIN, {"Retry-After": str(RETRY_AFTER_S)}) from None
    return {"requeued": _found(number, record_id)}


async def _purge(producer: ProducerDep, record_id: RecordId) -> dict[str, int]:
    """Forget a letter, or all of them."""
    try:
        number = await producer.dead_letters.purge(record_id)
    except ConfigError as error:
        raise HTTPException(422, str(error)) from None
    return {"purged": _found(number, record_id)}


def _found(number: int, record_id: str) -> int:
    if not number and record_id != ALL:
        raise HTTPException(404, "there is no such letter in the directory of this worker")
    return number
