"""Each rule of delivery taken out of the package in turn: the model has to see it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from aiorecover.kafka import recovery_check
from aiorecover.kafka.broker_task import BrokerTask
from aiorecover.kafka.delivery import Delivery
from aiorecover.kafka.router import Topic
from aiorecover.kafka.transactions import TransactionTask
from aiorecover.ring.format import BatchState
from aiorecover.ring.segments import Batch
from tests.model.delivering import TRANSACTIONS, DeliveringLife, Plan
from tests.model.process import ALWAYS, READBACK

POWER = Plan(kinds="p", mode=READBACK)
KILL = Plan(kinds="k", mode=READBACK)
SAFE = Plan(mode=ALWAYS)
ONCE = Plan(mode=TRANSACTIONS)

failed = Delivery.failed
lost_identity = Delivery.lost_identity
settle = Delivery.settle
store_number = TransactionTask._store_number


class Plant(NamedTuple):
    """A fault: the rule it breaks, what it is, what is changed for it, and how to walk."""

    rule: str
    name: str
    changes: tuple[tuple[Any, str, Any], ...]
    plan: Plan = Plan()

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in self.changes:
                stack.enter_context(patch.object(owner, name, new))
            yield


async def nothing_to_await(*_: Any, **__: Any) -> None:
    pass


def nothing(*_: Any, **__: Any) -> None:
    pass


def identity_in_memory(self: Batch, identity: Any, sent_at: int, epoch: int) -> None:
    del epoch
    self.identity, self.sent_at, self.state = identity, sent_at, BatchState.SENT


def sent_in_memory(self: Batch, identity: Any, sent_at: int, epoch: int) -> None:
    """Kafka's head is stored, and SENT is not."""
    store_identity(self, identity, sent_at, epoch)
    self.store_word(BatchState.SEALED, epoch)


store_identity = Batch.store_identity


def settled_unanswered(self: BrokerTask, lanes: Any, _: Any) -> None:
    for lane in lanes:
        self.delivery.finish(lane, lane.head)


def renumbered(self: Delivery, lane: Any, *arguments: Any, **more: Any) -> None:
    batch = lane.head
    if batch is not None and batch.identity is not None:
        lane.sequence = batch.identity[2] + batch.count
        batch.identity = None
        batch.store(BatchState.SEALED, self.ring.epoch)
    failed(self, lane, *arguments, **more)


def without_doubt(self: Delivery, lane: Any, *arguments: Any, **more: Any) -> None:
    failed(self, lane, *arguments, **more)
    lane.doubt = False


def renamed_without_doubt(self: Delivery, lane: Any, batch: Any, outcome: Any) -> None:
    lane.doubt = False
    batch.store(BatchState.SEALED, self.ring.epoch)
    lost_identity(self, lane, batch, outcome)


async def sequences_stay(self: Delivery, passed: Any, turn: int) -> None:
    before = [lane.sequence for lane, _, _ in passed]
    await settle(self, passed, turn)
    for (lane, _, _), sequence in zip(passed, before, strict=True):
        lane.sequence = sequence


def numbers_in_memory(self: TransactionTask, batches: Any, number: int) -> None:
    del self
    for batch in batches:
        batch.transaction = number


def numbers_stay(self: TransactionTask, batches: Any, number: int) -> None:
    if number:
        store_number(self, batches, number)


PLANTS = (
    Plant("R13", "sequences that may be in Kafka are given back", ((Delivery, "renew", nothing),)),
    Plant("R7", "the identity is not stored", ((Batch, "store_identity", identity_in_memory),), KILL),
    Plant("R7", "SENT is not stored", ((Batch, "store_identity", sent_in_memory),), KILL),
    Plant("R7", "settled without an answer", ((BrokerTask, "_unanswered", settled_unanswered),)),
    Plant("R7", "a repeat has another sequence", ((Delivery, "failed", renumbered),), KILL),
    Plant("R7", "what no flush covers is sent", ((DeliveringLife, "heeds_always", False),), SAFE),
    Plant("R8", "a rewrite does not flush", ((DeliveringLife, "flushed", nothing_to_await),), POWER),
    Plant("R9", "lanes do not wait for unassigned records", ((Topic, "gate", None),)),
    Plant("R11", "nothing is looked for", ((Delivery, "hold_for_check", lambda *_: False),), POWER),
    Plant("R11", "it is looked for from now on", ((recovery_check, "MARGIN_MS", -(10**9)),), POWER),
    Plant("R11", "a batch is split without a look", ((Delivery, "failed", without_doubt),), KILL),
    Plant("R12", "the number is not stored", ((TransactionTask, "_store_number", numbers_in_memory),), ONCE),
    Plant("R12", "numbers of aborted transactions stay", ((TransactionTask, "_store_number", numbers_stay),), ONCE),
    Plant("R12", "partitions are not added", ((TransactionTask, "_add_partitions", nothing_to_await),), ONCE),
    Plant("R13", "another identity without a look", ((Delivery, "lost_identity", renamed_without_doubt),), KILL),
    Plant("R13", "sequences do not go on", ((Delivery, "settle", sequences_stay),), KILL),
)
