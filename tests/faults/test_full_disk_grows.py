"""A disk that is full just when a file is to grow: the ring, the retry ring, the dead ring, the lanes.

Where it is the retry ring, the refusal comes while a slot is moved that has room in what the ring has already: that it
refuses no more than the next slot, poisons nothing and leaves no hole in the file is what is proved. A move that finds
no room on its way, and is given up, does not come about here (a move looks for its room before it begins):
`tests.test_compactor` has those. Nor does the reserved slot stand between a full disk and a ring that stays full here:
`tests.wal.test_reserved`.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from aiorecover import PermanentDeliveryError, RecoverableProducer, WalFullError
from aiorecover.testing import MockCluster
from aiorecover.testing.mock_cluster import ApiKey
from aiorecover.wal.storage import StorageFile
from tests.faults.ledger import SMALL, TOPIC, Ledger, told
from tests.faults.scene import play, small_disk

PAGE = 4096
PARTITIONS = 20  # more than an opening has blocks for
STALLED = PARTITIONS - 1
REFUSED = "refused"  # a topic that takes nothing
POLICY_VIOLATION = 44
TURNS_MOST = 500
FULL = "the disk is full: wait for delivery to free space, or free space on the disk ring="


class Stranger:
    """Takes all that is left of the disk just before a file grows for the ``number``-th time, until `goes`.

    ``alone``: until `takes_all`, only that file cannot grow: each other one is given what it asks for.
    """

    def __init__(self, place: Path, name: str, number: int, *, alone: bool) -> None:
        self._filler = place / "filler"
        self._alone = alone
        self._name = name
        self._number = number
        self._calls = 0
        self.refused: set[str] = set()  # files that could not grow
        real = StorageFile.allocate

        def allocate(file: StorageFile, offset: int, length: int) -> None:
            self._look(file.path.name, length)
            try:
                real(file, offset, length)
            except WalFullError:
                self.refused.add(file.path.name)
                raise

        setattr(StorageFile, "allocate", allocate)  # noqa: B010 - of this process, which is a scenario's own

    def _look(self, name: str, length: int) -> None:
        self._calls += name == self._name
        if name == self._name and (self._calls == self._number or (self._alone and self._calls > self._number)):
            self._come()
        elif name != self._name and self._alone and self._calls >= self._number:
            os.truncate(self._filler, max(0, self._filler.stat().st_size - length - PAGE))

    def _come(self) -> None:
        with self._filler.open("ab") as file, suppress(OSError):
            size = file.tell()
            while True:
                os.posix_fallocate(file.fileno(), size, PAGE)
                size += PAGE

    def takes_all(self) -> None:
        """From now on no file can grow."""
        self._alone = False
        self._come()

    def goes(self) -> None:
        """There is room again."""
        self._filler.unlink()


async def grow_everything(place: Path, name: str, number: int) -> None:
    """A lane stands still, a topic takes nothing, and lanes become more: each of the files has to grow."""
    # A ring that is full in front of the dead one would take no more letters, and nothing would be halted.
    ledger, letters, stranger = Ledger(), Ledger(), Stranger(place, name, number, alone=name == "dead")
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        cluster.create_topic(REFUSED, partitions=1)
        cluster.set_leader(TOPIC, STALLED, None)
        for _ in range(2):
            cluster.push_partition_errors(REFUSED, 0, ApiKey.PRODUCE, *[POLICY_VIOLATION] * 1000)
        async with RecoverableProducer(place / "wal", bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await publish_until(ledger, letters, producer, stranger)
            if name == "dead":
                await halted_at_last(letters, producer)
                stranger.takes_all()
            await filled_at_last(ledger, letters, producer)
            assert producer.state != "failed"
            stranger.goes()
            cluster.set_leader(TOPIC, STALLED, 1)
            for partition in range(PARTITIONS):
                await accepted_at_last(ledger, producer, partition)
            await flushed_at_last(producer)
            figures = producer.statistics()
            assert (figures.delivered, figures.dead_lettered) == (len(ledger.accepted), len(letters.accepted))
            found = {letter.record_id async for letter in producer.dead_letters.list()}
            assert found == {record.record_id for record in letters.accepted}
        await ledger.check_kafka(cluster.bootstrap_servers)
    assert name in stranger.refused


async def accepted_at_last(ledger: Ledger, producer: RecoverableProducer, partition: int) -> None:
    """There is room again, and a full ring accepts once it has come down to its low mark."""
    for _ in range(400):
        if await ledger.publish(producer, partition=partition) is None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing is accepted, though there is room")


async def flushed_at_last(producer: RecoverableProducer) -> None:
    """A lane that had no room for its letters is halted until the next look, and says so."""
    for _ in range(200):
        try:
            return await producer.flush(timeout_ms=40_000)
        except PermanentDeliveryError as error:
            if "error=no room for a dead letter: " not in told(error):
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("a lane stays halted, though there is room")


async def publish_until(ledger: Ledger, letters: Ledger, producer: RecoverableProducer, stranger: Stranger) -> None:
    """In each turn two for the lane that stands still, one that is refused, and one for each of some more lanes."""
    for turn in range(TURNS_MOST):
        healthy = range(min(STALLED, turn // 8 + 1))
        for partition in (STALLED, STALLED, *healthy):
            if stranger.refused:
                return
            await ledger.publish(producer, partition=partition)
        await letters.publish(producer, topic=REFUSED)
        await asyncio.sleep(0.02)
    raise AssertionError("nothing had to grow")


async def halted_at_last(letters: Ledger, producer: RecoverableProducer) -> None:
    """The dead ring cannot grow, and its lane is halted."""
    for _ in range(TURNS_MOST):
        if producer.state == "halted":
            return
        await letters.publish(producer, topic=REFUSED)
        await asyncio.sleep(0.02)
    raise AssertionError("the dead ring is full, and its lane goes on")


async def filled_at_last(ledger: Ledger, letters: Ledger, producer: RecoverableProducer) -> None:
    """No file can grow: what is published fills the ring."""
    for _ in range(TURNS_MOST):
        for partition in (STALLED, 0):
            error = await ledger.publish(producer, partition=partition)
            if error is not None:
                assert type(error) is WalFullError
                assert told(error).startswith(FULL)
                return
        await letters.publish(producer, topic=REFUSED)
        await asyncio.sleep(0.02)
    raise AssertionError("the disk is full, and the ring takes all")


CALLS = [("ring", 3), ("retry", 2), ("retry", 3), ("dead", 3), ("lanes", 2)]


@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{name} {number}" for name, number in CALLS])
def test_a_disk_that_is_full_when_a_file_is_to_grow_costs_nothing_and_all_goes_on_with_room(
    tmp_path: Path, name: str, number: int
) -> None:
    play(grow_everything, tmp_path, name, number, prefix=small_disk(tmp_path, "size=16m"))
