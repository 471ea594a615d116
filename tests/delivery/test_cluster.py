"""What is admitted as the one cluster, and what is said of another one."""

import asyncio
import logging
from unittest.mock import AsyncMock

import pytest
from aiokafka.errors import KafkaConnectionError

from aiorecover import WalIOError
from aiorecover.delivery.cluster import NO_ID, Cluster, WrongClusterError
from aiorecover.wal.checkpoint import Destination

pytestmark = pytest.mark.asyncio


class Memory:
    """What was made durable, and how often somebody was told of a change."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.remembered: list[str | None] = []
        self.changes = 0
        self.cluster = Cluster()

    def known(self, stored: str | None = None, given: str | None = None) -> Cluster:
        self.cluster = Cluster(Destination(stored), given, remember=self.remember, on_change=self.note)
        return self.cluster

    async def remember(self) -> None:
        self.remembered.append(self.cluster.destination.cluster_id)
        if self.fails:
            raise WalIOError(5, "the disk failed")

    def note(self) -> None:
        self.changes += 1


async def test_the_first_one_is_ours_and_is_remembered_once() -> None:
    memory = Memory()
    cluster = memory.known()
    for _ in range(2):
        await cluster.admit("a")
    assert (cluster.id, memory.remembered) == ("a", ["a"])
    with pytest.raises(WrongClusterError):
        await cluster.admit("b")
    assert cluster.id == "a"


async def test_the_one_that_the_directory_remembers_is_not_stored_again() -> None:
    memory = Memory()
    cluster = memory.known("a")
    await cluster.admit("a")
    assert memory.remembered == []
    assert not cluster.is_ours("b")


async def test_the_named_one_counts_and_only_that() -> None:
    memory = Memory()
    cluster = memory.known("a", "b")
    assert not cluster.is_ours("a")
    assert cluster.id == "a"  # nothing went to the other one yet
    assert cluster.wanted == "b"
    await cluster.admit("b")
    assert (cluster.id, memory.remembered) == ("b", ["b"])


async def test_a_cluster_in_the_place_of_another_has_the_next_number_and_keeps_it() -> None:
    first = Cluster(Destination(name="orders", servers=("a:1",)))
    await first.admit("a")
    assert first.destination == Destination("a", "orders")
    calls = 0

    async def cut_off_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError

    following = Cluster(first.destination, "b", remember=cut_off_once)
    with pytest.raises(WrongClusterError):
        await following.admit("a")
    assert following.destination == first.destination
    with pytest.raises(asyncio.CancelledError):
        await following.admit("b")
    assert following.id == "a"
    await following.admit("b")
    assert following.destination == Destination("b", "orders", cluster_number=1)
    back = Cluster(following.destination, "a")
    await back.admit("a")
    assert back.destination.cluster_number == 2  # what the first one gave out may be somebody else's by now
    assert Destination("z", cluster_number=65_535).next_number == 0


async def test_what_the_brokers_remember_is_asked_once_and_nobody_waits_for_the_disk() -> None:
    memory, told = Memory(), iter([3_000, 4_000])

    async def ask() -> int | None:
        return next(told)

    cluster = memory.known("a")
    for _ in range(2):
        await cluster.learn_expiration(ask)
    assert (cluster.destination.expiration_ms, memory.remembered) == (3_000, []), "the next checkpoint says it"


async def test_what_an_earlier_process_was_told_counts_until_somebody_says_otherwise() -> None:
    cluster = Cluster(Destination("a", expiration_ms=3_000))
    await cluster.learn_expiration(AsyncMock(return_value=None))
    assert cluster.destination.expiration_ms == 3_000
    other = Cluster(cluster.destination, "b")
    await other.admit("b")
    assert other.destination.expiration_ms is None, "another cluster has settings of its own"


@pytest.mark.parametrize("error", [ValueError("1d"), AttributeError("resources"), KafkaConnectionError("gone")])
async def test_a_question_that_fails_costs_no_session_and_is_not_asked_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ask = AsyncMock(side_effect=error)
    cluster = Cluster(Destination("a", expiration_ms=3_000))
    for _ in range(2):
        await cluster.learn_expiration(ask)
    assert (ask.await_count, cluster.destination.expiration_ms) == (1, 3_000)
    assert caplog.text.count("is not known") == 1


async def test_a_question_that_was_cut_off_is_asked_again() -> None:
    ask = AsyncMock(side_effect=[asyncio.CancelledError, 3_000])
    cluster = Cluster(Destination("a"))
    with pytest.raises(asyncio.CancelledError):
        await cluster.learn_expiration(ask)
    await cluster.learn_expiration(ask)
    assert cluster.destination.expiration_ms == 3_000


async def test_a_cluster_that_tells_its_id_at_last_is_asked_again() -> None:
    cluster = Cluster()
    await cluster.admit(None)
    await cluster.learn_expiration(AsyncMock(return_value=3_000))
    await cluster.admit("a")
    await cluster.learn_expiration(AsyncMock(return_value=4_000))
    assert cluster.destination == Destination("a", expiration_ms=4_000)


async def test_without_an_id_nothing_is_compared_and_nothing_remembered() -> None:
    memory = Memory()
    cluster = memory.known("a")
    await cluster.admit(None)
    assert (cluster.id, memory.remembered) == ("a", [])


async def test_without_an_id_it_is_taken_for_the_remembered_one_with_a_warning_and_refused_where_one_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remembered = Memory().known("a")
    for _ in range(2):
        await remembered.admit(None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "tells no cluster id" in caplog.text
    named = Memory().known("a", "a")
    with pytest.raises(WrongClusterError) as raised:
        await named.admit(None)
    assert raised.value.found == NO_ID
    assert str(named.error(NO_ID)).endswith("mend bootstrap_servers, or leave out the option given='a'")


async def test_of_two_sessions_none_goes_on_before_it_is_durable_nor_waits_for_a_disk_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    durable = asyncio.Event()

    async def slowly() -> None:
        await durable.wait()

    cluster = Cluster(remember=slowly)
    admitting = [asyncio.ensure_future(cluster.admit("a")) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in admitting)
    assert (cluster.id, cluster.destination.cluster_id) == (None, "a")
    durable.set()
    await asyncio.gather(*admitting)
    assert (cluster.id, caplog.text) == ("a", "")

    async def too_slowly() -> None:
        raise TimeoutError

    hanging = Cluster(remember=too_slowly)
    await hanging.admit("a")
    assert hanging.id == "a"
    assert caplog.text.count("is not remembered yet: check the disk") == 1


async def test_cut_off_while_it_is_made_durable_it_is_made_so_the_next_time() -> None:
    calls = 0

    async def cut_off_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    cluster = Cluster(remember=cut_off_once)
    admitting = asyncio.ensure_future(cluster.admit("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    admitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admitting
    assert cluster.id is None
    await cluster.admit("a")
    assert calls == 2


async def test_a_disk_that_fails_does_not_stop_delivery_and_another_one_is_refused_all_the_same() -> None:
    cluster = Memory(fails=True).known()
    await cluster.admit("a")
    assert not cluster.is_ours("b")


async def test_each_change_of_what_answers_is_told_once() -> None:
    memory = Memory()
    cluster = memory.known("a")
    for found in ("b", "b", "c"):
        cluster.is_wrong(found)
    assert (cluster.wrong_id, memory.changes) == ("c", 2)
    await cluster.admit("a")
    await cluster.admit("a")
    assert (cluster.wrong_id, memory.changes) == (None, 3)


async def test_the_error_names_both_clusters_and_the_remedy() -> None:
    told = str(Cluster(Destination("a")).error("b"))
    assert "mend bootstrap_servers, or if it was replaced on purpose start with the option cluster_id='b'" in told
    assert told.endswith("stored='a' cluster_id='b'")
    assert str(Cluster(Destination("a"), "c").error("b")).endswith("mend one of the two given='c' cluster_id='b'")
