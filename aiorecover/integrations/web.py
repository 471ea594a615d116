"""The part that web frameworks share: a producer for the time that a service runs, and the answers to probes."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, TypeAlias, Unpack

from aiorecover import ClosedError, RecoverableProducer, RecoverError, WalFullError
from aiorecover.config import Options

__all__ = [
    "NOT_ACCEPTED",
    "RETRY_AFTER_S",
    "TOO_LARGE",
    "TRY_AGAIN",
    "Lifespan",
    "lifespan",
    "live",
    "producer_of",
    "ready",
]

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""An application calls it with itself, and serves until the context ends."""

NOT_ACCEPTED: Final = (WalFullError, ClosedError)  # nothing was stored: the client may send it again
RETRY_AFTER_S: Final = 10  # a full ring has room again within a second of Kafka's return, a restart takes seconds
TOO_LARGE: Final = "the record is too large"
TRY_AGAIN: Final = "try again later"  # paths and sizes in the error are for the log, not for clients

_POISONED: Final = frozenset({"failed", "interrupted"})  # only a restart helps
_ACCEPTS: Final = frozenset({"connecting", "connected", "halted"})


def lifespan(
    wal_dir: str | os.PathLike[str],
    *,
    bootstrap_servers: str | Sequence[str],
    wraps: Lifespan | None = None,
    **options: Unpack[Options],
) -> Lifespan:
    """Return a lifespan that has a producer started in ``app.state.producer``, for FastAPI, Starlette and Litestar.

    Starting needs no broker. The end takes ``stop_timeout_ms`` (10 s) at most, besides what ``wraps`` takes: keep it
    below the time that the server or its supervisor gives. Workers may share ``wal_dir``.

    Args:
        wal_dir: as `RecoverableProducer` takes it, with all its options.
        bootstrap_servers: Kafka.
        wraps: a lifespan of your own. It runs inside: the producer is there when it begins, and until it has ended.
            The application gets what it yields.
        options: the producer's.

    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Any]:
        async with RecoverableProducer(wal_dir, bootstrap_servers=bootstrap_servers, **options) as producer:
            app.state.producer = producer
            async with nullcontext() if wraps is None else wraps(app) as state:
                yield state

    return run


def producer_of(app: Any) -> RecoverableProducer:
    """Return the producer that `lifespan` has started.

    Raises:
        RecoverError: the application has none; the message says what to do.

    """
    producer: RecoverableProducer | None = getattr(app.state, "producer", None)
    if producer is None:
        message = "the application has no producer: give it lifespan=lifespan(...); in tests enter the client"
        more = "(with TestClient(app) as client); a mounted application needs its own state.producer"
        raise RecoverError(f"{message} {more} app={type(app).__qualname__}")
    return producer


def live(producer: RecoverableProducer) -> tuple[bool, dict[str, Any]]:
    """Return whether the process should go on, and the payload; only a restart helps where it should not."""
    state = producer.state
    return state not in _POISONED, {"live": state not in _POISONED, "state": state}


def ready(producer: RecoverableProducer) -> tuple[bool, dict[str, Any]]:
    """Return whether records are accepted, also without Kafka, and the payload.

    ``delivering``: Kafka is reached. ``oldest_age_seconds``: of what waits; None: nothing does.
    """
    now = producer.statistics()
    accepts = now.state in _ACCEPTS and not now.full
    return accepts, {
        "ready": accepts,
        "state": now.state,
        "delivering": now.state == "connected",
        "full": now.full,
        "pending": now.pending,
        "oldest_age_seconds": now.oldest_age_seconds,
        "lanes_in_trouble": now.lanes_in_trouble,
    }
