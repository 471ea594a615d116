"""Points at which the publishing process kills itself: around each request that it sends to a broker.

A kill from outside seldom falls between two requests that matter; here it always does. The library has no hooks for
this: `arm` wraps methods of aiokafka inside the process that is to die.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection
from aiokafka.producer.sender import SendProduceReqHandler
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["POINTS", "TRANSACTION_POINTS", "arm"]


class Fuse:
    """Burns one step at a time; the last one is the end."""

    def __init__(self, steps: int, end: Callable[[], None]) -> None:
        self._steps = steps
        self._end = end

    def burn(self) -> None:
        """One step nearer to the end."""
        self._steps -= 1
        if self._steps == 0:
            self._end()


def before(owner: Any, name: str) -> Callable[[Fuse], None]:
    """When a method is called; for a coroutine: made, and not begun."""

    def plant(fuse: Fuse) -> None:
        method = getattr(owner, name)

        def dying(*arguments: Any, **more: Any) -> Any:
            fuse.burn()
            return method(*arguments, **more)

        setattr(owner, name, dying)

    return plant


def when_written_to_the_broker(kind: type) -> Callable[[Fuse], None]:
    """The kernel has the request, and delivers it although we are dead."""

    def plant(fuse: Fuse) -> None:
        send = AIOKafkaConnection.send

        def dying(self: AIOKafkaConnection, request: Any, *arguments: Any, **more: Any) -> Any:
            answer = send(self, request, *arguments, **more)  # type: ignore[no-untyped-call]
            if isinstance(request, kind):
                fuse.burn()
            return answer

        setattr(AIOKafkaConnection, "send", dying)  # noqa: B010 - of this process, which is to die

    return plant


POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "after the send": when_written_to_the_broker(ProduceRequest),
    "before the answer is read": before(SendProduceReqHandler, "handle_response"),
}

TRANSACTION_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a partition is added": when_written_to_the_broker(AddPartitionsToTxnRequest),
    **POINTS,
    "when the group is added": when_written_to_the_broker(AddOffsetsToTxnRequest),
    "when the position is sent": when_written_to_the_broker(TxnOffsetCommitRequest),
    "after the position is sent": before(AIOKafkaProducer, "commit_transaction"),
    "when the commit is sent": when_written_to_the_broker(EndTxnRequest),
}
"""With ``guarantee="exactly_once"``."""


def arm(point: str, times: int, end: signal.Signals = signal.SIGKILL) -> None:
    """Die in this process, or stand still (SIGSTOP), when `point` is reached for the `times`-th time.

    SIGKILL to ourselves: no further line is run, in this thread or any other; or SIGSTOP, until SIGCONT.
    """
    TRANSACTION_POINTS[point](Fuse(times, lambda: os.kill(os.getpid(), end)))
