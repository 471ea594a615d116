"""The loops beside `publish`: what they do not expect is told of, and they go on."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiorecover import ClosedError, RecoverableProducer
from aiorecover import background as module
from aiorecover import supervised as supervised_module
from aiorecover.delivery.backlog import Backlog
from aiorecover.delivery.dead_letter_topic import DeadLetterTopic
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.testing import MemoryDisk, MockCluster
from aiorecover.wal.directory import Directory
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

SLOT = 1 << 14
TIMES = 3
MANY = 1_000  # records: ten slots and more


class Odd(Exception):  # noqa: N818 - nobody knows what it is
    """Not of ours."""


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        yield cluster


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILURE_PAUSE", 0.02)
    monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 60)  # which is for who cancels tasks of ours


def failing(patch: pytest.MonkeyPatch, owner: type[Any], name: str, error: Callable[[], Exception]) -> list[str]:
    """Have a method fail `TIMES` times; its calls."""
    method, calls = getattr(owner, name), list[str]()

    def called(*given: Any, **more: Any) -> Any:
        calls.append(name)
        if len(calls) <= TIMES:
            raise error()
        return method(*given, **more)

    patch.setattr(owner, name, called)
    return calls


async def publish(producer: RecoverableProducer, numbers: range) -> None:
    for number in numbers:
        await producer.publish("t", b"%d" % number, key=b"k", headers=[("large", bytes(100))])


@pytest.mark.parametrize(
    ("loop", "owner", "step"),
    [
        ("checkpoint", Directory, "give_back_memory"),
        ("checkpoint", Directory, "next_checkpoint"),
        ("checkpoint", Directory, "write_checkpoint"),  # in the keeper's thread
        ("checkpoint", Directory, "recycle"),
        ("spare", Directory, "prepare_spares"),
        ("fsync", Directory, "sync"),
        ("backlog", Backlog, "look"),
        ("dispatcher", Dispatcher, "step"),
    ],
)
async def test_a_loop_that_meets_what_it_does_not_expect_goes_on_after_a_pause(
    mock: MockCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    loop: str,
    owner: type[Any],
    step: str,
) -> None:
    """Checkpoints go on, and so slots are freed and come again: else the ring would grow up to its limit, and stop."""
    options: dict[str, Any] = {"slot_bytes": SLOT, "checkpoint_interval_ms": 20, "fsync_interval_ms": 20}
    async with RecoverableProducer(MemoryDisk(), bootstrap_servers=mock.bootstrap_servers, **options) as producer:
        await until(lambda: producer.state == "connected")
        calls = failing(monkeypatch, owner, step, Odd)
        await publish(producer, range(MANY))
        await until(lambda: len(calls) > TIMES)
        await publish(producer, range(MANY, 2 * MANY))
        await producer.flush(timeout_ms=20_000)
        made = producer.statistics().checkpoints
        await until(lambda: producer.statistics().bytes_ring <= 2 * SLOT)
        await publish(producer, range(2 * MANY, 2 * MANY + 1))
        await producer.flush(timeout_ms=20_000)
        await until(lambda: producer.statistics().checkpoints > made)
        assert producer.state == "connected"
        assert producer.statistics().pending == 0
    values = [record.value for record in await read_topic(mock.bootstrap_servers, "t")]
    assert values == [b"%d" % number for number in range(2 * MANY + 1)]
    told = [line for line in caplog.records if f"the {loop} loop failed and is begun again" in line.getMessage()]
    assert [line.levelno for line in told] == [logging.ERROR] * TIMES
    assert all(line.exc_info and line.exc_info[0] is Odd for line in told)


async def test_a_loop_that_finds_the_producer_stopped_ends_without_a_word(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it stores a copy of a dead letter just then: the next start does."""
    runs: list[bool] = []

    async def run(_: DeadLetterTopic) -> None:
        runs.append(True)
        message = "the producer is stopped: nothing was stored"
        raise ClosedError(message)

    monkeypatch.setattr(module, "FAILURE_PAUSE", 0.001)
    monkeypatch.setattr(DeadLetterTopic, "run", run)
    async with RecoverableProducer(
        MemoryDisk(), bootstrap_servers=mock.bootstrap_servers, dead_letter_topic="dead", slot_bytes=SLOT
    ) as producer:
        await publish(producer, range(2))
        await producer.flush(timeout_ms=20_000)
    assert runs == [True]
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]
