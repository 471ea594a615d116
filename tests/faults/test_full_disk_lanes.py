"""A disk that is full when more lanes come than have a block in `lanes`, and go on publishing.

A lane without a block sends nothing. It gets one in the place of slots that are free. Where somebody else is quicker to
take what is given up for it, it gets that of a lane which has nothing in flight. Where there is none, it waits: it may
hold three batches, and what comes for it then must not keep the records of all others waiting, nor the slots in which
these stand. The stand-in for Kafka drops no repeats, and takes none.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer
from aiorecover.delivery.journaling import Journal
from aiorecover.wal.lanes import FIRST_BLOCKS
from aiorecover.wal.storage import StorageFile
from tests.faults.ledger import SLOT
from tests.faults.scene import play, small_disk
from tests.faults.test_full_disk import PAGE, filled, pages_free
from tests.faults.test_full_disk_backlog import (
    KNOWN,
    MORE,
    OPTIONS,
    Kafka,
    Published,
    accepted_at_last,
    all_adds_up,
    be_quick,
)
from tests.support.eventually import until

SLOTS = 24  # of the ring, when the disk is filled
WAITING = FIRST_BLOCKS  # the lane that comes one too late
ROUNDS = 60  # records of each lane: more than the ring holds together, and of one lane more than three batches


@contextmanager
def filled_by_one_who_is_quicker(place: Path) -> Iterator[None]:
    """As `filled`, and whenever `lanes` is to grow he takes all that there is by then."""
    grow = StorageFile.allocate

    def allocate(file: StorageFile, offset: int, length: int) -> None:
        if file.path.name == "lanes":
            take_all(place / "filler")
        grow(file, offset, length)

    with filled(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(StorageFile, "allocate", allocate)
        yield


def take_all(filler: Path) -> None:
    with filler.open("ab") as file, suppress(OSError):
        while True:
            os.posix_fallocate(file.fileno(), file.tell(), PAGE)
            file.seek(0, os.SEEK_END)


@contextmanager
def something_in_flight_in_each() -> Iterator[None]:
    """In each lane with a block, as it seems to those without one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_free_block", lambda _: False)
        yield


async def publish_to_more_lanes_than_have_a_block(place: Path, is_quicker: bool) -> None:
    be_quick()
    kafka, published = Kafka(), Published()
    async with RecoverableProducer(place / "wal", bootstrap_servers="nowhere:1", **OPTIONS) as producer:
        await grow_the_ring(producer, kafka, published)
        with filled_by_one_who_is_quicker(place) if is_quicker else filled(place), something_in_flight_in_each():
            await give_every_block_away(producer, kafka, published)
            for _ in range(ROUNDS):
                for partition in range(WAITING + 1):
                    await accepted_at_last(producer, published, partition)
            await until(lambda: kafka.has(published, WAITING if is_quicker else WAITING + 1))
            if is_quicker:
                figures = producer.statistics()
                assert kafka.values("t", WAITING) == []
                assert (figures.lanes_stalled, figures.pending) == (1, ROUNDS)
                assert figures.slots_moved > 0
                await until(lambda: pages_free(place) == 0)
            await until(lambda: slots_in_use(producer) <= 2)  # what does not get through waits in the retry ring
            all_adds_up(producer)
        await producer.flush(timeout_ms=20_000)
        all_adds_up(producer)
    assert kafka.log == published.values


async def grow_the_ring(producer: RecoverableProducer, kafka: Kafka, published: Published) -> None:
    """Lanes of which each has a block by then."""
    kafka.answers.clear()
    while producer.statistics().bytes_allocated < SLOTS * SLOT:
        await published.publish(producer, "t", published.count % KNOWN)
        await asyncio.sleep(0)
    kafka.answers.set()
    await producer.flush(timeout_ms=20_000)


async def give_every_block_away(producer: RecoverableProducer, kafka: Kafka, published: Published) -> None:
    for partition in range(FIRST_BLOCKS):
        await accepted_at_last(producer, published, partition)
    await until(lambda: kafka.has(published, FIRST_BLOCKS))


async def come_to_a_full_disk_with_more_lanes_than_have_a_block(place: Path) -> None:
    be_quick()
    kafka, published = Kafka(), Published()
    kafka.answers.clear()
    async with RecoverableProducer(place / "wal", bootstrap_servers="nowhere:1", **OPTIONS) as producer:
        while producer.statistics().bytes_allocated < SLOTS * SLOT:
            await published.publish(producer, "t", published.count % MORE)
            await asyncio.sleep(0)
        with filled_by_one_who_is_quicker(place):
            kafka.answers.set()
            await until(lambda: kafka.has(published, MORE))
            await until(lambda: producer.statistics().pending == 0)
            assert pages_free(place) == 0
            all_adds_up(producer)
    assert kafka.log == published.values


def slots_in_use(producer: RecoverableProducer) -> int:
    assert producer._opened is not None
    return sum(not slot.moved for slot in producer._opened.directory.ring.live)


def test_a_lane_without_room_for_its_entry_keeps_no_other_waiting_and_no_slot_of_the_ring(tmp_path: Path) -> None:
    play(publish_to_more_lanes_than_have_a_block, tmp_path, True, prefix=small_disk(tmp_path, "size=4m"))


def test_more_lanes_than_have_room_for_an_entry_get_through_in_turns(tmp_path: Path) -> None:
    """What waits for those without one fills every slot, so none comes free for them."""
    play(come_to_a_full_disk_with_more_lanes_than_have_a_block, tmp_path, prefix=small_disk(tmp_path, "size=4m"))


def test_a_lane_without_room_for_its_entry_gets_it_in_the_place_of_free_slots(tmp_path: Path) -> None:
    play(publish_to_more_lanes_than_have_a_block, tmp_path, False, prefix=small_disk(tmp_path, "size=4m"))
