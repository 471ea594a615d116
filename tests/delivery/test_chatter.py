"""aiokafka's lines in our sessions are held back and counted; the user's own clients are as loud as ever."""

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed

from aiorecover.delivery import chatter
from aiorecover.delivery.chatter import TELL_INTERVAL, Chatter
from aiorecover.testing import MockCluster
from tests.delivery.test_session import identified, running, until_rebuilt

CLIENT = logging.getLogger("aiokafka")
SENDER = logging.getLogger("aiokafka.producer.sender")


@pytest.fixture
def filtered() -> Iterator[None]:
    each = Chatter()
    chatter.begin(each)
    yield
    chatter.end(each)


def texts(caplog: pytest.LogCaptureFixture, of: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.split(".")[0] == of]


@pytest.mark.usefixtures("filtered")
def test_warnings_and_errors_of_our_context_are_held_back_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = Chatter()

    def talk() -> None:
        for number in range(80):
            SENDER.warning("Got error produce response: %s", number)
        CLIENT.error("Unable connect to node with id %s: %s", 2, "refused")

    ours.context().run(talk)
    assert caplog.messages == []
    assert ours.take() == " held_back=81 last='Unable connect to node with id 2: refused'"
    assert ours.take() == ""


@pytest.mark.usefixtures("filtered")
def test_a_time_limit_that_says_nothing_is_told_as_no_answer() -> None:
    ours = Chatter()

    def talk() -> None:
        CLIENT.error('Unable connect to "%s:%s": %s', "host", 9092, TimeoutError())

    ours.context().run(talk)
    assert ours.take() == """ held_back=1 last='Unable connect to "host:9092": no answer'"""
    assert ours.take_cause() == ("TimeoutError", "TimeoutError('no answer')")


@pytest.mark.usefixtures("filtered")
def test_the_error_that_a_line_names_is_remembered_once_by_its_class_and_text() -> None:
    ours = Chatter()

    def talk() -> None:
        CLIENT.error('Unable connect to "%s": %s', "host", SaslAuthenticationFailed("wrong"))
        CLIENT.warning("nothing is named here")
        CLIENT.warning("nor %(here)s", {"here": "here"})

    ours.context().run(talk)
    assert ours.take_cause() == ("SaslAuthenticationFailed", "SaslAuthenticationFailed('wrong')")
    assert ours.take_cause() is None


@pytest.mark.usefixtures("filtered")
def test_other_contexts_and_two_sessions_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Chatter(), Chatter()
    first.context().run(SENDER.warning, "of the first")
    second.context().run(SENDER.warning, "of the second")
    SENDER.warning("of the user")
    assert caplog.messages == ["of the user"]
    assert (first.held_back, second.held_back) == (1, 1)


@pytest.mark.usefixtures("filtered")
def test_debug_lines_pass_and_so_does_the_first_traceback_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiokafka")
    ours = Chatter()

    def talk() -> None:
        SENDER.debug("request")
        for name in ("first", "second"):
            for _ in range(3):
                SENDER.error(name, exc_info=ValueError(name))

    ours.context().run(talk)
    assert caplog.messages == ["request", "first", "second"]
    assert ours.held_back == 4


@pytest.mark.usefixtures("filtered")
def test_a_traceback_of_a_broken_connection_is_held_back_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """As aiokafka's sender tells that a broker has gone away, while it looked for the coordinator of a group."""
    ours = Chatter()
    broken = KafkaError("KafkaConnectionError('Connection at localhost:9092 closed')")
    broken.__cause__ = KafkaConnectionError("Connection at localhost:9092 closed")
    ours.context().run(lambda: SENDER.error("Unexpected error in sender routine", exc_info=broken))
    assert caplog.messages == []
    assert ours.take() == " held_back=1 last='Unexpected error in sender routine'"


@pytest.mark.usefixtures("filtered")
def test_trouble_that_goes_on_is_told_of_at_once_and_then_once_a_minute() -> None:
    ours = Chatter()
    talk = ours.context()
    assert ours.take_due(1000.0) == ""
    told = []
    for second in range(150):
        talk.run(SENDER.warning, "trouble")
        if line := ours.take_due(1000.0 + second):
            told.append((second, line))
    assert [second for second, _ in told] == [0, TELL_INTERVAL, 2 * TELL_INTERVAL]
    assert told[1][1] == " held_back=60 last='trouble'"


def test_the_filter_stands_only_while_a_session_lives(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # sessions of tests that left theirs without a stop
    ours, another = Chatter(), Chatter()
    chatter.begin(ours)
    chatter.begin(another)
    chatter.end(another)
    ours.context().run(SENDER.warning, "one of two still lives")
    chatter.end(ours)
    assert caplog.messages == []
    assert not CLIENT.filters
    assert not SENDER.filters
    ours.context().run(SENDER.warning, "afterwards")
    assert caplog.messages == ["afterwards"]


def test_a_session_that_nobody_closes_takes_the_filter_with_it() -> None:
    gc.collect()
    ours = Chatter()
    chatter.begin(ours)
    assert CLIENT.filters
    del ours
    gc.collect()
    assert not CLIENT.filters


@pytest.mark.asyncio
async def test_an_outage_is_one_line_for_each_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with MockCluster(brokers=3) as mock:
        async with running(mock.bootstrap_servers) as session:
            await session.identity()
            mock.broker_down()
            async with asyncio.timeout(20):
                while session.state != "connecting":  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            mock.broker_up()
            await until_rebuilt(session)
        lines = texts(caplog, "aiorecover")
        assert texts(caplog, "aiokafka") == []
        assert [line.split(" bootstrap_servers")[0] for line in lines if "state=" in line] == [
            "kafka session state=connected",
            "kafka session state=connecting",
            "kafka session state=connected",
            "kafka session state=closed",
        ]
        told = [line for line in lines if "state=" not in line and "not well" not in line]
        assert len(told) == 1, told
        assert "kafka cannot be reached" in told[0]
        assert sum(int(line.split("held_back=")[1].split()[0]) for line in lines if "held_back=" in line) > 10


@pytest.mark.asyncio
async def test_a_client_of_the_user_beside_our_session_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    with MockCluster() as mock:
        async with running(mock.bootstrap_servers) as session:
            await session.identity()
            theirs = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers, retry_backoff_ms=20)
            await theirs.start()
            try:
                mock.broker_down()
                async with asyncio.timeout(20):
                    while not texts(caplog, "aiokafka"):
                        await asyncio.sleep(0.02)
                        theirs.client.force_metadata_update()
            finally:
                mock.broker_up()
                await theirs.stop()


@pytest.mark.asyncio
async def test_one_of_three_brokers_down_is_told_of_although_no_state_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MockCluster(brokers=3) as mock:
        mock.create_topic("t", partitions=1)
        mock.set_leader("t", 0, 3)
        async with running(mock.bootstrap_servers) as session:
            session.want("t")
            batch = await identified(session, b"v")
            await session.discover()
            mock.broker_down(3)
            sending = asyncio.create_task(session.send(batch, "t", 0))
            async with asyncio.timeout(20):
                while "kafka is reached, but not well held_back=" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert session.rebuilds == 0
            sending.cancel()
        assert texts(caplog, "aiokafka") == []
