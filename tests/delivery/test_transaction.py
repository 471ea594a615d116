"""The steps of one transaction, with a stand-in for aiokafka's producer: each ends, in an answer or a Kafka error."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    IllegalOperation,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    ProducerFenced,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState
from aiokafka.protocol.commit import OffsetFetchResponse_v3
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse_v0,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from aiorecover.delivery import transaction
from aiorecover.delivery.committed import Committed
from aiorecover.delivery.offset_fetch import UNSTABLE, OffsetFetchRequest_v7, OffsetFetchResponse_v7
from aiorecover.delivery.transaction import (
    OFFSETS_TOPIC,
    PlaceRefusedError,
    UnansweredError,
    begin,
    commit,
    give_up_unanswered,
    group_of,
    may_write,
    note_refusals,
    read,
    retrieve_errors,
    transactional_id,
)

pytestmark = pytest.mark.asyncio

UNKNOWN_TOPIC, UNAUTHORIZED = 3, 29


class Kafka:
    """Both a producer and its client; answers what a test says."""

    def __init__(self) -> None:
        self.client: Any = self
        self.calls: list[Any] = []
        self.fails: list[BaseException] = []
        self.found = (-1, "", 0)
        self.error_code = 0
        self.version = 9  # the newest that it knows of the request for the position
        self.is_ready = [True]

    async def begin_transaction(self) -> None:
        self._meet("begin")

    async def send_offsets_to_transaction(self, offsets: Any, group: str) -> None:
        self._meet((offsets, group))

    async def commit_transaction(self) -> None:
        self._meet("commit")

    async def coordinator_lookup(self, _: Any, group: str) -> int:
        self._meet(group)
        return 5

    async def ready(self, *_: Any, **__: Any) -> bool:
        return self.is_ready.pop(0) if len(self.is_ready) > 1 else self.is_ready[0]

    async def send(self, node: int, request: Any, **_: Any) -> Any:
        assert node == 5
        offset, text, code = self.found
        asked = request.prepare({OffsetFetchRequest_v7.API_KEY: (0, self.version)})
        if self.version < OffsetFetchRequest_v7.API_VERSION:
            ((topic, (partition,)),) = asked.topics
            return OffsetFetchResponse_v3(0, [(topic, [(partition, offset, text, code)])], self.error_code)
        assert asked.require_stable
        ((topic, (partition,), _),) = asked.topics
        parts: list[Any] = [(partition, offset, -1, text, code, {})]
        return OffsetFetchResponse_v7(0, [(topic, parts, {})], self.error_code, {})

    def _meet(self, call: Any) -> None:
        self.calls.append(call)
        if self.fails:
            raise self.fails.pop(0)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(transaction, "READ_PAUSE", 0.001)
    return Kafka()


async def test_the_position_is_added_under_our_name_before_the_commit(kafka: Any) -> None:
    await commit(kafka, "group", OFFSETS_TOPIC, Committed(77, "me/1"))
    offsets = {TopicPartition(OFFSETS_TOPIC, 0): OffsetAndMetadata(77, "me/1 0")}
    assert kafka.calls == [(offsets, "group"), "commit"]


async def test_nothing_is_committed_where_the_position_is_refused(kafka: Any) -> None:
    kafka.fails = [GroupAuthorizationFailedError()]
    with pytest.raises(GroupAuthorizationFailedError):
        await commit(kafka, "group", OFFSETS_TOPIC, Committed(77, "me/1"))
    assert len(kafka.calls) == 1


@pytest.mark.parametrize("version", [3, 7, 9])
async def test_the_position_is_read_with_the_name_of_who_committed_it(kafka: Any, version: int) -> None:
    """Also from a broker that is too old to know of transactions which are not over."""
    kafka.version = version
    kafka.found = (77, "me/1 3 us/0:5", 0)
    assert await read(kafka, "group", "orders") == Committed(77, "me/1", (("us/0", 5),), number=3)
    kafka.found = (0, "me/1 0", 0)
    assert await read(kafka, "group", "orders") == Committed(0, "me/1")


async def test_a_position_that_a_transaction_may_change_is_waited_for(kafka: Any) -> None:
    kafka.found = (-1, "", UNSTABLE)
    reading = asyncio.create_task(read(kafka, "group", "orders"))
    await asyncio.sleep(0.02)
    assert not reading.done()
    kafka.found = (77, "me/1 0", 0)
    assert await reading == Committed(77, "me/1")


@pytest.mark.parametrize("found", [(-1, "", 0), (-1, "", UNKNOWN_TOPIC)])
async def test_none_and_none_any_more_are_the_same(kafka: Any, found: tuple[int, str, int]) -> None:
    kafka.found = found
    assert await read(kafka, "group", "orders") is None


async def test_a_position_that_may_not_be_read_is_not_taken_for_none(kafka: Any) -> None:
    kafka.found = (-1, "", UNAUTHORIZED)
    with pytest.raises(TopicAuthorizationFailedError):
        await read(kafka, "group", "orders")
    kafka.found, kafka.error_code = (-1, "", 0), GroupAuthorizationFailedError.errno
    with pytest.raises(GroupAuthorizationFailedError):
        await read(kafka, "group", "orders")


async def test_a_coordinator_that_moves_is_asked_until_it_tells(kafka: Any) -> None:
    kafka.fails = [GroupLoadInProgressError(), NotCoordinatorForGroupError()]
    kafka.is_ready = [False, True]
    kafka.found = (77, "me/1 0", 0)
    assert await read(kafka, "group", "orders") == Committed(77, "me/1")
    assert len(kafka.calls) == 4


@pytest.mark.parametrize("error", [AssertionError("Invalid state transition"), IllegalOperation("not in the middle")])
@pytest.mark.parametrize("step", ["begin", "commit"])
async def test_a_transaction_in_another_state_than_aiokafka_expects_is_lost(
    kafka: Any, step: str, error: Exception
) -> None:
    kafka.fails = [error]
    with pytest.raises(KafkaError, match="the transaction is lost"):
        await (begin(kafka) if step == "begin" else commit(kafka, "group", OFFSETS_TOPIC, Committed(1, "me/1")))


async def test_an_error_of_kafka_s_stays_what_it_is(kafka: Any) -> None:
    kafka.fails = [ProducerFenced()]
    with pytest.raises(ProducerFenced):
        await begin(kafka)


async def test_each_step_ends(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(transaction, "STEP_LIMIT", 0.02)
    for name in ("begin_transaction", "commit_transaction", "send"):
        monkeypatch.setattr(kafka, name, hangs)
    for step in (
        begin(kafka),
        commit(kafka, "group", OFFSETS_TOPIC, Committed(1, "me/1")),
        read(kafka, "group", "orders"),
    ):
        with pytest.raises(KafkaError, match="did not go on within"):
            await step


async def test_each_directory_has_a_name_of_its_own_in_kafka() -> None:
    assert len({transactional_id(group_of(directory), number) for directory in "ab" for number in (0, 1, 2)}) == 6
    assert transactional_id(group_of("a"), 1).startswith("aiorecover-")


@pytest.mark.parametrize("end", ["error_transaction", "fatal_error"])
async def test_what_ends_a_transaction_that_nobody_commits_any_more_is_not_printed(end: str) -> None:
    printed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    producer: Any = SimpleNamespace(_txn_manager=TransactionManager("id", 1000))
    retrieve_errors(producer)
    producer._txn_manager.set_pid_and_epoch(7, 0)
    producer._txn_manager.begin_transaction()
    getattr(producer._txn_manager, end)(TopicAuthorizationFailedError())
    del producer
    gc.collect()
    await asyncio.sleep(0)
    assert printed == []


@pytest.mark.parametrize("code", [0, UNAUTHORIZED])
async def test_a_position_that_is_refused_is_told_to_who_commits_it_and_its_transaction_can_be_aborted(
    code: int,
) -> None:
    """Else aiokafka's sender dies of it, and what is told is that the session has ended."""
    manager = TransactionManager("id", 1000)
    answers = [TxnOffsetCommitResponse_v0(0, [("place", [(0, code)])])]

    async def send(*_: Any, **__: Any) -> Any:
        return answers.pop()

    producer: Any = SimpleNamespace(_txn_manager=manager, client=SimpleNamespace(send=send))
    note_refusals(producer)
    manager.set_pid_and_epoch(7, 0)
    manager.begin_transaction()
    offsets = {TopicPartition("place", 0): OffsetAndMetadata(1, "")}
    committing = manager.add_offsets_to_txn(offsets, "group")
    answer = await producer.client.send(0, TxnOffsetCommitRequest("id", "group", 7, 0, []))
    if not code:
        assert (answer.errors, committing.done()) == ([("place", [(0, 0)])], False)
        return
    assert answer.errors == []
    with pytest.raises(PlaceRefusedError, match="place"):
        await committing
    manager.aborting_transaction()
    manager.complete_transaction()


@pytest.mark.parametrize(
    ("request_", "error", "ends"),
    [
        (TxnOffsetCommitRequest("id", "group", 7, 0, []), KafkaConnectionError(), True),
        (EndTxnRequest("id", 7, 0, True), KafkaConnectionError(), True),
        (EndTxnRequest("id", 7, 0, True), RequestTimedOutError(), True),
        (EndTxnRequest("id", 7, 0, True), NodeNotReadyError(), False),
        (AddOffsetsToTxnRequest("id", 7, 0, "group"), KafkaConnectionError(), False),
    ],
    ids=["a position", "an end", "in time", "nothing was written", "it does no harm twice"],
)
async def test_what_may_be_on_its_way_yet_is_not_asked_for_again_in_the_same_session(
    request_: Any, error: KafkaError, ends: bool
) -> None:
    why: list[str] = []

    async def send(*_: Any, **__: Any) -> Any:
        raise error

    producer: Any = SimpleNamespace(client=SimpleNamespace(send=send))
    give_up_unanswered(producer, why.append)
    with pytest.raises(UnansweredError if ends else type(error)):
        await producer.client.send(0, request_)
    assert len(why) == ends


@pytest.mark.parametrize("granted", [True, False])
async def test_whether_a_topic_may_be_written_to_is_asked_with_a_transaction_that_holds_nothing_and_the_next_can_begin(
    *, granted: bool
) -> None:
    manager = TransactionManager("id", 1000)
    manager.set_pid_and_epoch(7, 0)
    asked: list[set[TopicPartition]] = []

    async def begin_transaction() -> None:
        manager.begin_transaction()

    async def commit_transaction() -> None:
        manager.committing_transaction()
        asked.append(set(manager.partitions_to_add()))
        if granted:
            manager.partition_added(TopicPartition("t", 0))
            manager.complete_transaction()
        else:
            manager.error_transaction(TopicAuthorizationFailedError({"t"}))
        await manager.wait_for_transaction_end()

    async def abort_transaction() -> None:
        manager.aborting_transaction()
        assert manager.is_empty_transaction()
        manager.complete_transaction()

    producer: Any = SimpleNamespace(
        _txn_manager=manager,
        begin_transaction=begin_transaction,
        commit_transaction=commit_transaction,
        abort_transaction=abort_transaction,
    )
    for _ in range(2):
        assert await may_write(producer, "t") is granted
    assert asked == [{TopicPartition("t", 0)}] * 2
    assert (manager.state, manager.partitions_to_add()) == (TransactionState.READY, set())
