"""A lane's task that ends as nobody expects: that is seen, told of once, and the lane goes on in order."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.delivery import sender as module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.testing import MemoryDisk
from tests.delivery.refusing import Broker, Sent
from tests.support.eventually import until

LIMIT = 20_000  # ms: what takes longer hangs


class OddError(BaseException):
    """No `Exception`."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Of our own: what ends a process ends the run of its loop, and somebody may run that again."""
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=1)
    monkeypatch.setattr(sessions_module, "Session", made.session())
    monkeypatch.setattr(module, "RESTART_PAUSE", 0.2)
    return made


def run_for(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    timer = loop.call_later(seconds, loop.stop)
    try:
        loop.run_forever()
    finally:
        timer.cancel()


@pytest.mark.parametrize("error", [OddError(), KeyboardInterrupt(), SystemExit(1)], ids=lambda one: type(one).__name__)
def test_a_lane_whose_task_anything_ends_goes_on_in_order(
    loop: asyncio.AbstractEventLoop, broker: Broker, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """A signal handler may raise wherever it finds us."""
    broker.answers.clear()
    producer = RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", linger_ms=0)

    async def begin() -> None:
        await producer.start()
        await producer.publish("t", b"0")
        await until(lambda: broker.held == 1)
        for number in range(1, 4):
            await producer.publish("t", b"%d" % number)

    async def end() -> int:
        await producer.flush(LIMIT)
        return await producer.stop()

    def raising(_: list[Sent]) -> BaseException | None:
        broker.refuses = lambda _: None
        raise error

    broker.refuses = raising
    loop.run_until_complete(begin())
    broker.answers.set()
    with nullcontext() if isinstance(error, OddError) else pytest.raises(type(error)):
        run_for(loop, 0.05)
    run_for(loop, 0.01)
    assert producer.state == "interrupted"
    assert producer.statistics().in_flight == 0
    assert loop.run_until_complete(end()) == 0
    assert broker.values("t") == [b"0", b"1", b"2", b"3"]
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "a lane's task failed: begun again in 0 s topic=t partition=0" in line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[1] is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=lambda one: type(one).__name__)
def test_a_record_whose_callback_ends_the_process_is_told_of_again_if_it_lives_on(
    loop: asyncio.AbstractEventLoop, broker: Broker, error: BaseException
) -> None:
    told: list[object] = []

    def on_delivery(report: DeliveryReport) -> None:
        told.append(report.context)
        if len(told) == 1:
            broker.forget()  # it does not know repeats
            broker.log.clear()
            raise error

    producer = RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", linger_ms=0, on_delivery=on_delivery)

    async def all_of_it() -> None:
        for number in range(3):
            await producer.publish("t", b"%d" % number, context=number)
        await producer.flush(LIMIT)
        assert await producer.stop() == 0

    loop.run_until_complete(producer.start())
    task = loop.create_task(all_of_it())
    with pytest.raises(type(error)):
        loop.run_until_complete(asyncio.wait_for(asyncio.shield(task), LIMIT / 1000))
    loop.run_until_complete(task)
    assert told == [0, 0, 1, 2]
    assert broker.values("t") == [b"0", b"1", b"2"]
    assert producer.statistics().callback_errors == 0


@pytest.mark.asyncio
async def test_a_batch_that_may_have_been_sent_when_its_task_failed_is_possibly_persisted(broker: Broker) -> None:
    """Its sequence given back, the broker would swallow the next batch as a repeat of it."""
    async with RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", linger_ms=0) as producer:
        broker.refuses = FailingOnce(OddError()).verdict
        await producer.publish("t", b"poison")
        await producer.flush(LIMIT)
        (letter,) = [letter async for letter in producer.dead_letters.list()]
    assert letter.persisted == "possibly"


class FailingOnce:
    """Raises an error that is no answer of Kafka's, then refuses."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def verdict(self, _: list[Sent]) -> BaseException | None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return PolicyViolationError()
