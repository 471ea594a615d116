"""Points of the library at which the publishing process kills itself: every step around a batch and a checkpoint.

A kill from outside seldom falls between two lines that matter; here it always does. The library has no hooks for this:
`arm` wraps its methods inside the process that is to die. A point that is not reached so often is told by the parent.
Where a power cut is played in one process (`power_cut`), a `Fuse` with another end is planted, and taken out again.
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

from aiorecover.compactor import Compactor
from aiorecover.delivery import transaction
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.drain import Drain, GoingBack
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.moves import Moves
from aiorecover.delivery.position_in_kafka import PositionInKafka
from aiorecover.delivery.sender import Sender
from aiorecover.delivery.session import Session
from aiorecover.delivery.stalled import StalledLanes
from aiorecover.delivery.transactions import Transactions
from aiorecover.opened import Opened
from aiorecover.wal.checkpoint import CheckpointFile
from aiorecover.wal.directory import Directory
from aiorecover.wal.lanes import Lanes
from aiorecover.wal.moving import Copying, Move, Rewrite
from aiorecover.wal.ring import Ring
from aiorecover.wal.storage import StorageFile
from aiorecover.wal.stream import Stream
from tests.crash.replaced import Replaced

__all__ = [
    "DRAINING_POINTS",
    "FAILED_FLUSH_POINTS",
    "LETTER_POINTS",
    "LOST_REQUESTS",
    "MENDED_POINTS",
    "MOVING_POINTS",
    "ONCE",
    "OPENINGS",
    "POINTS",
    "REWRITING_POINTS",
    "ROTATION_POINTS",
    "STALLED_POINTS",
    "TRANSACTION_OPENINGS",
    "TRANSACTION_POINTS",
    "Fuse",
    "arm",
]


class Fuse(Replaced):
    """Burns one step at a time; the last one is the end. It is `put` into the library."""

    def __init__(self, steps: int, end: Callable[[], None]) -> None:
        super().__init__()
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

        fuse.put(owner, name, dying)

    return plant


def after(owner: Any, name: str) -> Callable[[Fuse], None]:
    """When a plain method has returned."""

    def plant(fuse: Fuse) -> None:
        method = getattr(owner, name)

        def dying(*arguments: Any, **more: Any) -> Any:
            result = method(*arguments, **more)
            fuse.burn()
            return result

        fuse.put(owner, name, dying)

    return plant


def after_await(owner: Any, name: str) -> Callable[[Fuse], None]:
    """When a coroutine has returned; an exception does not count."""

    def plant(fuse: Fuse) -> None:
        method = getattr(owner, name)

        async def dying(*arguments: Any, **more: Any) -> Any:
            result = await method(*arguments, **more)
            fuse.burn()
            return result

        fuse.put(owner, name, dying)

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

        fuse.put(AIOKafkaConnection, "send", dying)

    return plant


def when_lost(kind: type) -> Callable[[Fuse], None]:
    """Right before a request is written: the broker never hears of it. For a fuse whose end keeps us from writing."""

    def plant(fuse: Fuse) -> None:
        send = AIOKafkaConnection.send

        def dying(self: AIOKafkaConnection, request: Any, *arguments: Any, **more: Any) -> Any:
            if isinstance(request, kind):
                fuse.burn()
            return send(self, request, *arguments, **more)  # type: ignore[no-untyped-call]

        fuse.put(AIOKafkaConnection, "send", dying)

    return plant


def in_the_middle_of_the_journal(fuse: Fuse) -> None:
    """Half of an entry stands in its place."""
    store = Lanes.store

    def dying(self: Lanes, block: int, body: bytes) -> None:
        write = self._file.write

        def half(data: bytes, offset: int) -> None:
            write(data[: len(data) // 2], offset)
            fuse.burn()
            write(data, offset)

        self._file.write = half  # type: ignore[method-assign]
        try:
            store(self, block, body)
        finally:
            self._file.write = write  # type: ignore[method-assign]

    fuse.put(Lanes, "store", dying)


def in_the_middle_of_settling(fuse: Fuse) -> None:
    """Half of a batch's settle words stand in the ring."""
    settle = Ring.settle

    def dying(self: Ring, slot: Any, places: Any) -> None:
        if len(places) < 2:
            settle(self, slot, places)
            return
        half = len(places) // 2
        settle(self, slot, places[:half])
        fuse.burn()
        settle(self, slot, places[half:])

    fuse.put(Ring, "settle", dying)


def before_the_checkpoint_is_flushed(fuse: Fuse) -> None:
    """The copy is written, and nothing makes it durable."""
    write = CheckpointFile.write

    def dying(self: CheckpointFile, checkpoint: Any) -> None:
        self.leave_word(checkpoint)
        fuse.burn()
        write(self, checkpoint)

    fuse.put(CheckpointFile, "write", dying)


def when_copies_are_flushed(fuse: Fuse) -> None:
    """And the checkpoint that makes the move is not written; an opening writes both of its copies, too."""
    write, write_both = Directory.write_checkpoint, CheckpointFile.write_both
    moved: list[int] = []

    def noting(self: Directory, checkpoint: Any) -> None:
        moved[:] = [self.checkpoint.moved]
        write(self, checkpoint)

    def dying(self: CheckpointFile, checkpoint: Any) -> None:
        if moved and checkpoint.moved > moved[0]:
            fuse.burn()
        write_both(self, checkpoint)

    fuse.put(Directory, "write_checkpoint", noting)
    fuse.put(CheckpointFile, "write_both", dying)


def of_a_rewriting(plant: Callable[[Fuse], None]) -> Callable[[Fuse], None]:
    """As ``plant``, and only from when all of the retry ring is copied until what stood there is recycled."""

    def planting(fuse: Fuse) -> None:
        make, burn = Compactor._make, fuse.burn
        making: list[Copying] = []

        def noting(self: Compactor, copying: Copying, captured: Any) -> Any:
            making[:] = [copying]
            return make(self, copying, captured)

        def burning() -> None:
            if making and isinstance(making[0], Rewrite):
                burn()

        fuse.put(Compactor, "_make", noting)
        fuse.burn = burning  # type: ignore[method-assign]
        plant(fuse)

    return planting


def when_a_lane_is_passed_over(fuse: Fuse) -> None:
    """It is known to be stalled, and none of its records is behind yet."""
    pass_over = StalledLanes.pass_over

    def dying(self: StalledLanes, *, full: bool) -> bool:
        chosen = pass_over(self, full=full)
        if chosen:
            fuse.burn()
        return chosen

    fuse.put(StalledLanes, "pass_over", dying)


POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "before the identity": before(Lane, "identify"),
    "before the journal": before(Lanes, "store"),
    "in the middle of the journal": in_the_middle_of_the_journal,
    "after the journal": after(Lanes, "store"),
    "before the send": before(Session, "send"),
    "after the send": when_written_to_the_broker(ProduceRequest),
    "before the answer is read": before(SendProduceReqHandler, "handle_response"),
    "after the acknowledgement": after_await(Session, "send"),
    "before the first settle word": before(Ring, "settle"),
    "in the middle of settling": in_the_middle_of_settling,
    "after the last settle word": after(Ring, "settle"),
    "after settling": after_await(Sender, "_settle"),
    "before a checkpoint": before(CheckpointFile, "write"),
    "before a checkpoint is flushed": before_the_checkpoint_is_flushed,
    "after a checkpoint": after(CheckpointFile, "write"),
}

OPENINGS: Final[dict[str, Callable[[Fuse], None]]] = {
    "before an opening is durable": before(CheckpointFile, "write_both"),
    "after an opening is durable": after(CheckpointFile, "write_both"),
    "before a directory is closed": before(Directory, "close"),
}
"""Reached once for each directory: a process that publishes and adopts none has only one."""


STALLED_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a lane is passed over": when_a_lane_is_passed_over,
    "when a lane is gone back for": before(GoingBack, "__init__"),
    "in the middle of catching up": before(Drain, "_turn"),
    "when a lane is caught up": after(Drain, "_arrived"),
}
"""Reached only where a lane is stalled."""


MOVING_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a record is copied": after(Move, "_copy"),
    "when a slot is copied": before(Moves, "repoint"),
    "when batches are pointed to the copies": after_await(Moves, "repoint"),
    "when copies are flushed": when_copies_are_flushed,
    "when a move is made": before(Move, "finish"),
    "when a moved slot is recycled": after(Moves, "made"),
}
"""Reached only where a lane is stalled for so long that slots are moved."""

REWRITING_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a copy is copied once more": after(Rewrite, "_copy"),
    "when the retry ring is copied": of_a_rewriting(before(Directory, "write_checkpoint")),
    "when the copies of copies are flushed": of_a_rewriting(before(CheckpointFile, "write_both")),
    "when a rewriting is made": before(Rewrite, "finish"),
    "when what was rewritten is recycled": of_a_rewriting(after(Moves, "made")),
}
"""Reached only where one of several lanes stays stalled for longer than the others."""

DRAINING_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when copies are read": after(Stream, "_originals"),
}
"""Reached only where it is well again."""

LETTER_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a letter is put": after_await(DeadLetters, "put"),
    "when a letter is flushed": after_await(DeadLetters, "durable"),
    "when a refused record is settled": before(DeadLetters, "settled"),
    "when a copy is stored": after_await(Opened, "store"),
    "when a letter stands there twice": before(DeadLetters, "remove"),
    "when a letter is replaced": after(DeadLetters, "remove"),
}
"""Reached only where records are refused; those behind the third with ``dead_letter_topic``."""

MENDED_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a letter is withdrawn": after_await(DeadLetters, "withdraw"),
}
"""Reached only where a topic takes what it has refused."""


FAILED_FLUSH_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when word of a failed flush is left": after(Directory, "_leave_word"),
    "when a slot is written again": after(StorageFile, "rewrite"),
}
"""Reached only where a flush fails; the second one by an opening behind that, or behind any end that was not clean."""

TRANSACTION_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    **{
        point: POINTS[point]
        for point in (
            "before the send",
            "after the send",
            "after the acknowledgement",
            "before the first settle word",
            "in the middle of settling",
            "after the last settle word",
            "before a checkpoint",
            "before a checkpoint is flushed",
            "after a checkpoint",
        )
    },
    "before a transaction begins": before(transaction, "begin"),
    "after a transaction has begun": after_await(transaction, "begin"),
    "when a partition is added": when_written_to_the_broker(AddPartitionsToTxnRequest),
    "when all is answered": after_await(Transactions, "_until_answered"),
    "when those who wait for a flush are known": before(Directory, "sync"),
    "before those who waited for a flush are told": after(Directory, "sync"),
    "after the ring is flushed": after_await(Opened, "_flush_ring"),
    "when the group is added": when_written_to_the_broker(AddOffsetsToTxnRequest),
    "when the position is sent": when_written_to_the_broker(TxnOffsetCommitRequest),
    "after the position is sent": before(AIOKafkaProducer, "commit_transaction"),
    "when the commit is sent": when_written_to_the_broker(EndTxnRequest),
    "after the commit": after_await(transaction, "commit"),
}
"""With ``guarantee="exactly_once"``."""

TRANSACTION_OPENINGS: Final[dict[str, Callable[[Fuse], None]]] = {
    "before the position is read": before(transaction, "read"),
    "after the position is read": after_await(transaction, "read"),
    "before the opening is remembered": before(Opened, "_remember"),
    "after the opening is remembered": after_await(Opened, "_remember"),
}
"""Of those, reached once in each life, or twice."""

ROTATION_POINTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "before a transactional id is left": before(PositionInKafka, "leave_id"),
    "when the next transactional id is remembered": before(PositionInKafka, "_use_number"),
    "when a transactional id is left": after_await(PositionInKafka, "leave_id"),
    "when the position bears the next one's number": before(PositionInKafka, "_fence"),
    "when the one that was left is fenced": after_await(PositionInKafka, "_fence"),
}
"""Of those, reached only where a transaction does not end."""

ONCE: Final = frozenset([*OPENINGS, *TRANSACTION_OPENINGS])
"""Whoever waits until one of them is reached for the third time waits in vain."""

LOST_REQUESTS: Final[dict[str, Callable[[Fuse], None]]] = {
    "when a batch is lost": when_lost(ProduceRequest),
    "when the adding of a partition is lost": when_lost(AddPartitionsToTxnRequest),
    "when the adding of the group is lost": when_lost(AddOffsetsToTxnRequest),
    "when the position is lost": when_lost(TxnOffsetCommitRequest),
    "when the commit is lost": when_lost(EndTxnRequest),
}
"""Of a transaction; what is written and arrives: `TRANSACTION_POINTS`."""


def arm(point: str, times: int, end: signal.Signals = signal.SIGKILL) -> None:
    """Die in this process, or stand still (SIGSTOP), when `point` is reached for the `times`-th time.

    SIGKILL to ourselves: no further line is run, in this thread or any other; or SIGSTOP, until SIGCONT.
    """
    known = POINTS | STALLED_POINTS | MOVING_POINTS | DRAINING_POINTS | LETTER_POINTS | REWRITING_POINTS | OPENINGS
    known |= FAILED_FLUSH_POINTS | MENDED_POINTS | TRANSACTION_POINTS | TRANSACTION_OPENINGS | ROTATION_POINTS
    fuse = Fuse(times, lambda: os.kill(os.getpid(), end))
    known[point](fuse)
