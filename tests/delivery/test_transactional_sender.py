"""A batch that goes in a transaction: when it is sent, and what becomes of it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    OutOfOrderSequenceNumber,
    PolicyViolationError,
    ProducerFenced,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import RecordMetadata

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.delivery.session import SessionLostError
from aiorecover.delivery.size_limit import SizeLimit
from aiorecover.delivery.transactional_sender import TransactionalSender
from tests.delivery.stored import metadata
from tests.delivery.test_lane import lane_with
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

FRESH = Identity(7, 3)


class Around:
    """Everybody whom the sender knows: what they were told, and what they answer."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.open = True
        self.answers: list[BaseException | None] = []  # one for each attempt; behind them all goes well
        self.identities: list[tuple[int, int, int] | None] = []
        self.reasons: list[str] = []
        self.refusals: list[list[str]] = []
        self.taken: list[tuple[Lane, LaneBatch, RecordMetadata]] = []
        self.buried: list[bool] = []
        self.expired: Callable[[LaneBatch], bool] = lambda _: False
        self.limit_ms: int | None = None

    # -- sessions

    async def identity(self, *_: Any) -> Identity:
        return FRESH

    async def send(self, _: Lane, batch: LaneBatch, __: Any) -> RecordMetadata:
        batch.attempts += 1
        self.identities.append(batch.identity)
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            raise error
        return metadata(11)

    def give_up(self, _: Lane, reason: str) -> None:
        self.reasons.append(reason)

    # -- transactions

    def admits(self, _: Lane) -> bool:
        return self.open

    async def changed(self) -> None:
        self.calls["changed"] += 1
        await asyncio.sleep(0.001)

    def refused(self, topics: list[str]) -> None:
        self.refusals.append(topics)

    def take(self, *taken: Any) -> None:
        self.taken.append(taken)

    # -- the others

    def has_due(self, _: Lane, batch: LaneBatch) -> bool:
        return self.expired(batch)

    async def bury(self, lane: Any, batch: LaneBatch, error: BaseException | None = None) -> int:
        """As `Refused.bury`, and as `Expiry.bury`."""
        self.buried.append(batch.possibly)
        if error is not None:
            lane.acknowledged()
        return batch.count

    async def settle(self, *_: Any) -> None:
        self.calls["expired"] += 1


def sender_of(around: Any) -> TransactionalSender:
    never: Any = SimpleNamespace()  # there is no journal in transactions
    return TransactionalSender(
        around,
        around,
        never,
        around,
        never,
        around,
        halts=False,
        is_forgotten=lambda _: True,  # in a transaction nobody asks
        backoff=(0.001, 0.001),
        on_acknowledged=never,
        on_halted=never,
        on_parted=lambda *_: None,
    )


async def sent(lane: Lane, around: Around) -> None:
    sender_of(around).deliver(lane)
    await until(lambda: not lane.delivering)


async def test_it_is_sent_under_the_identity_of_the_transaction_and_taken_without_being_settled() -> None:
    around, lane = Around(), lane_with(3, 2)
    first, second = lane.ready
    await sent(lane, around)
    assert around.identities == [(7, 3, 0), (7, 3, 3)]
    assert around.taken == [(lane, first, metadata(11)), (lane, second, metadata(11))]
    assert (lane.settled, lane.in_flight, first.possibly) == (5, None, True)


async def test_it_waits_until_the_transaction_is_open_for_it() -> None:
    around, lane = Around(), lane_with(1)
    around.open = False
    sender_of(around).deliver(lane)
    await until(lambda: around.calls["changed"] > 3)
    assert around.identities == []
    around.open = True
    await until(lambda: len(around.taken) == 1)


async def test_while_it_waits_it_lets_go_once_the_lane_begins_anew() -> None:
    around, lane = Around(), lane_with(2)
    (batch,) = lane.ready
    around.open = False
    sender_of(around).deliver(lane)
    await until(lambda: around.calls["changed"] > 3)
    lane.leaves = True
    await until(lambda: not lane.delivering)
    assert (list(lane.ready), lane.in_flight, around.reasons) == ([batch], None, [])


@pytest.mark.parametrize("error", [SessionLostError(), LeaderNotAvailableError()], ids=["lost", "retriable"])
async def test_what_may_go_again_is_sent_as_it_is_in_the_same_transaction(error: KafkaError) -> None:
    around, lane = Around(), lane_with(2)
    around.answers = [error]
    await sent(lane, around)
    assert around.identities == [(7, 3, 0)] * 2
    assert (around.reasons, len(around.taken)) == ([], 1)


async def test_of_a_lost_session_nobody_knows_whether_it_was_taken() -> None:
    around, lane = Around(), lane_with(2)
    around.answers = [SessionLostError(), PolicyViolationError()]
    (batch,) = lane.ready
    seen: list[bool] = []
    around.give_up = lambda *_: seen.append(batch.possibly)  # type: ignore[method-assign]
    await sent(lane, around)
    assert seen == [True]


@pytest.mark.parametrize(
    "error",
    [OutOfOrderSequenceNumber(), ProducerFenced()],
    ids=["sequence", "fenced"],
)
async def test_where_kafka_no_longer_follows_the_transaction_is_begun_anew(error: KafkaError) -> None:
    around, lane = Around(), lane_with(2)
    around.answers = [error]
    await sent(lane, around)
    assert len(around.reasons) == 1
    assert around.reasons[0].startswith(type(error).__name__)
    assert lane.identity == FRESH  # not another one: nothing of this transaction counts


@pytest.mark.parametrize(
    ("said", "topics"), [({"u", "other"}, ["other", "u"]), ("u", ["u"]), (None, ["t"])], ids=["some", "one", "unsaid"]
)
async def test_a_topic_that_may_not_be_written_to_is_told_by_the_name_that_kafka_says_and_the_transaction_begun_anew(
    said: Any, topics: list[str]
) -> None:
    """Batches for other topics are refused with it."""
    around, lane = Around(), lane_with(2)
    (batch,) = lane.ready
    around.answers = [TopicAuthorizationFailedError(*([said] if said is not None else []))]
    await sent(lane, around)
    assert (around.refusals, around.reasons) == ([topics], [])
    assert (lane.identity, [taken for _, taken, _ in around.taken]) == (FRESH, [batch])


async def test_what_is_refused_for_good_and_surely_not_there_is_a_dead_letter_in_this_transaction() -> None:
    around, lane = Around(), lane_with(1, 2)
    around.answers = [PolicyViolationError()]
    await sent(lane, around)
    assert (around.buried, around.reasons) == ([False], [])
    assert around.identities == [(7, 3, 0), (7, 3, 0)]  # its place in the sequence goes to the next one


async def test_what_is_refused_for_good_and_may_be_there_is_none_before_the_transaction_is_begun_anew() -> None:
    around, lane = Around(), lane_with(1)
    around.answers = [SessionLostError(), PolicyViolationError()]
    await sent(lane, around)
    assert around.buried == []
    assert [reason.partition(":")[0] for reason in around.reasons] == ["PolicyViolationError"]


async def test_what_has_expired_and_was_not_sent_is_parted_with_though_no_transaction_is_open() -> None:
    around, lane = Around(), lane_with(2)
    around.open = False
    around.limit_ms, around.expired = 1, lambda _: True
    await sent(lane, around)
    assert (around.buried, around.calls["expired"], around.reasons) == ([False], 1, [])
    assert lane.settled == 2


async def test_what_has_expired_and_may_be_there_has_one_session_built_anew_and_is_parted_with_behind_that() -> None:
    around, lane = Around(), lane_with(2)
    (batch,) = lane.ready
    batch.possibly = True
    around.limit_ms, around.expired = 1, lambda _: True

    def give_up(_: Lane, reason: str) -> None:
        around.reasons.append(reason)
        around.open = False  # until the lanes were rewound

    around.give_up = give_up  # type: ignore[method-assign]
    sender_of(around).deliver(lane)
    await until(lambda: around.calls["changed"] > 5)
    assert (around.buried, len(around.reasons)) == ([], 1)
    lane.leaves = True
    await until(lambda: not lane.delivering)
    lane.rewind([])
    await sent(lane, around)
    assert (around.buried, len(around.reasons)) == ([False], 1)


async def test_an_acknowledgement_tells_the_limit_and_who_is_at_fault_if_this_one_is_not() -> None:
    around, lane = Around(), lane_with(2, 1)
    lane.limit = SizeLimit(1 << 20, lambda low, _: low)
    taken: list[int] = []
    lane.limit.taken = lambda size, _: taken.append(size)  # type: ignore[method-assign, assignment]
    first, second = lane.ready
    first.rest = second
    await sent(lane, around)
    assert taken == [first.bytes, second.bytes]
    assert second.at_fault
