"""One transaction of an AIOKafkaProducer, and the position that stands in it; each step has a time limit.

aiokafka waits for all of this without one, and commits although batches have failed: who calls `commit` has the answer
to every batch by then. The position is an offset of a group that has no members, read back from its coordinator. That
is asked only by a session that has just begun: its start has ended whatever a process before it had left undecided.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    IllegalOperation,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from aiorecover.delivery.committed import Committed, parsed
from aiorecover.kafka.offset_fetch import UNSTABLE, StableOffsetFetch, answered

_T = TypeVar("_T")

STEP_LIMIT = 30.0  # seconds for one of them: a coordinator that was killed is replaced after ten
READ_PAUSE = 0.05  # seconds until the coordinator is asked once more, which is not ready


class NotStableError(KafkaError):
    """A transaction with the position is being committed, or aborted."""


class UnansweredError(Exception):
    """A request may still be on its way, and must not be made once more under its epoch; aiokafka's sender ends."""


class PlaceRefusedError(TopicAuthorizationFailedError):
    """The position may not stand there: to read it takes Describe on that topic, to commit it Read."""


REFUSALS = (PlaceRefusedError, GroupAuthorizationFailedError)
"""A right to the position is missing: it may be granted at any time, and takes no other session."""

_NOT_NOW = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    NodeNotReadyError,
    KafkaConnectionError,
    RequestTimedOutError,
    NotStableError,
)

OFFSETS_TOPIC = "__consumer_offsets"
"""Where the position stands by default: under a partition that is in every cluster, and that nobody deletes."""


def group_of(directory: str) -> str:
    """The name of a directory's group; its transactional ids begin with it, so that rights can be given for both."""
    return f"aiorecover-{directory}"


def transactional_id(group: str, number: int) -> str:
    """The one in use: another number is taken where a transaction of the one before does not end."""
    return f"{group}-{number}" if number else group


def note_unfinished(producer: AIOKafkaProducer, on_answer: Callable[[bool], None]) -> None:
    """Be told whether an earlier transaction is still not over, whenever the coordinator says so, or that it is.

    It keeps a producer from starting, and later on from adding partitions; aiokafka asks on, without a word.
    """
    send: Any = producer.client.send

    async def looking(node_id: Any, request: Any, **more: Any) -> Any:
        answer = await send(node_id, request, **more)
        if isinstance(request, InitProducerIdRequest):
            on_answer(answer.error_code == ConcurrentTransactions.errno)
        elif isinstance(request, AddPartitionsToTxnRequest):
            codes = [code for _, partitions in answer.errors for _, code in partitions]
            on_answer(ConcurrentTransactions.errno in codes)
        return answer

    producer.client.send = looking  # type: ignore[method-assign]


def note_refusals(producer: AIOKafkaProducer) -> None:
    """Have `commit` raise `PlaceRefusedError` where that is what Kafka says: aiokafka's sender would die of it.

    The transaction goes on, and can be aborted.
    """
    send: Any = producer.client.send
    manager: Any = producer._txn_manager  # noqa: SLF001

    async def looking(node_id: Any, request: Any, **more: Any) -> Any:
        answer = await send(node_id, request, **more)
        return _without_refusal(manager, answer) if isinstance(request, TxnOffsetCommitRequest) else answer

    producer.client.send = looking  # type: ignore[method-assign]


def _without_refusal(manager: Any, answer: Any) -> Any:
    """What the sender may see of an answer: nothing, where it is a refusal, which whoever commits is told instead."""
    errors = [(topic, code) for topic, partitions in answer.errors for _, code in partitions]
    refused = [topic for topic, code in errors if code == TopicAuthorizationFailedError.errno]
    if not refused:
        return answer
    _, _, committing = manager._pending_txn_offsets.popleft()  # noqa: SLF001 - there is one position in one place
    committing.set_exception(PlaceRefusedError(*refused))
    committing.exception()  # also where nobody waits any more
    return type(answer)(answer.throttle_time_ms, [])


def give_up_unanswered(producer: AIOKafkaProducer, give_up: Callable[[str], None]) -> None:
    """Have a position, or a commit, that was not answered be the end of the session, where aiokafka would ask again.

    The first one may be held up on its way, and come behind the answer to the second: to a broker it is then a request
    of the transaction that is open by that time. It would be committed without its position, or the position go back.
    The next session has another epoch, under which nothing of this one counts; what became of it the position tells.
    """
    send: Any = producer.client.send

    async def looking(node_id: Any, request: Any, **more: Any) -> Any:
        try:
            return await send(node_id, request, **more)
        except NodeNotReadyError:  # nothing was written
            raise
        except KafkaError as error:
            if not isinstance(request, TxnOffsetCommitRequest | EndTxnRequest):
                raise
            what = "the position" if isinstance(request, TxnOffsetCommitRequest) else "the end"
            give_up(f"{what} of a transaction was not answered")
            raise UnansweredError from error

    producer.client.send = looking  # type: ignore[method-assign]


def retrieve_errors(producer: AIOKafkaProducer) -> None:
    """What ends its transaction is told by the next step, or the session ends with it; asyncio has nothing to add.

    aiokafka leaves it in a future, and where nobody commits any more, that would be printed as never retrieved.
    """
    manager: Any = producer._txn_manager  # noqa: SLF001
    for name in ("error_transaction", "fatal_error"):
        setattr(manager, name, partial(_retrieving, manager, getattr(manager, name)))


def _retrieving(manager: Any, fail: Callable[[BaseException], None], error: BaseException) -> None:
    fail(error)
    manager._transaction_waiter.exception()  # noqa: SLF001


async def begin(producer: AIOKafkaProducer) -> None:
    """Begin; nothing is asked of Kafka before the first batch.

    Raises:
        KafkaError: the session cannot: it has to be built anew.

    """
    await _limited(producer.begin_transaction())


async def commit(producer: AIOKafkaProducer, group: str, topic: str, committed: Committed) -> None:
    """Commit what was sent, and the position with it. Whatever else is raised: whether it was committed is not known.

    Raises:
        PlaceRefusedError: nothing was committed; the transaction is still open.
        KafkaError: as `begin`.

    """
    place = TopicPartition(topic, 0)
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = {
        place: OffsetAndMetadata(committed.position, committed.metadata)
    }
    await _limited(producer.send_offsets_to_transaction(offsets, group))
    await _limited(producer.commit_transaction())


async def abort(producer: AIOKafkaProducer) -> None:
    """End a transaction of which nothing shall count; the next one can begin.

    Raises:
        KafkaError: as `begin`.

    """
    await _limited(producer.abort_transaction())


def refused_topics(error: TopicAuthorizationFailedError, sent_to: str) -> list[str]:
    """Whose right is missing: all batches of a transaction are told of it, those for other topics, too."""
    named = error.args[0] if error.args else sent_to
    return [named] if isinstance(named, str) else sorted(named)


async def may_write(producer: AIOKafkaProducer, topic: str) -> bool:
    """Whether Kafka lets us write to a topic, asked with a transaction that holds nothing; the next one can begin.

    Raises:
        KafkaError: as `begin`.

    """
    await begin(producer)
    manager: Any = producer._txn_manager  # noqa: SLF001
    manager.maybe_add_partition_to_txn(TopicPartition(topic, 0))  # which each topic has
    try:
        await _limited(producer.commit_transaction())
    except TopicAuthorizationFailedError:
        await abort(producer)
        return False
    return True


async def read(producer: AIOKafkaProducer, group: str, topic: str) -> Committed | None:
    """The position that was committed last; None where there is none, or not any more.

    Raises:
        PlaceRefusedError: it may not be told there.
        KafkaError: it cannot be told now.

    """
    return await _limited(_read(producer, group, topic))


async def _read(producer: AIOKafkaProducer, group: str, topic: str) -> Committed | None:
    """Again and again while its coordinator is being found, or moves."""
    while True:
        try:
            return await _read_once(producer, group, topic)
        except _NOT_NOW:
            await asyncio.sleep(READ_PAUSE)


async def _read_once(producer: AIOKafkaProducer, group: str, topic: str) -> Committed | None:
    client = producer.client
    node_id = await client.coordinator_lookup(CoordinationType.GROUP, group)
    if not await client.ready(node_id, group=ConnectionGroup.COORDINATION):
        raise NodeNotReadyError
    request = StableOffsetFetch(group, topic, 0)
    offset, text, code = answered(await client.send(node_id, request, group=ConnectionGroup.COORDINATION))
    if code == UNSTABLE:
        raise NotStableError
    if code == TopicAuthorizationFailedError.errno:
        raise PlaceRefusedError(topic)
    if code and for_code(code) is not UnknownTopicOrPartitionError:
        raise for_code(code)
    return parsed(offset, text) if offset >= 0 else None


async def _limited(step: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(STEP_LIMIT):
            return await step
    except TimeoutError:
        message = f"the transaction did not go on within {STEP_LIMIT:.0f} s"
        raise KafkaError(message) from None
    except (AssertionError, IllegalOperation) as error:  # aiokafka's transaction is in another state: its sender failed
        message = "the transaction is lost"
        raise KafkaError(message) from error
