"""Sectors that rot under a producer (FUSE): pages that left memory, and that the disk cannot give back any more."""

import asyncio
import errno
from pathlib import Path

import pytest

from aiorecover import PermanentDeliveryError, RecoverableProducer
from aiorecover import background as background_module
from aiorecover import recounting as recounting_module
from aiorecover.testing import MockCluster
from aiorecover.wal import format as fmt
from aiorecover.wal import window as window_module
from aiorecover.wal.losses import Damage
from aiorecover.wal.ring import RECENT, RECENT_BYTES, Ring
from aiorecover.wal.storage import PAGE
from tests.faults.flaky import Disk, flaky
from tests.faults.ledger import SLOT, SMALL, TOPIC, Ledger
from tests.faults.scene import Scenario, fuse, play
from tests.support.eventually import until

LARGE = RECENT_BYTES + 1000  # bytes of a record that is not kept in memory: it is read back from the file
RECORDS = 40
GIVEN_BACK = 0.5  # seconds in which every slot has left the memory of the process
CLOSED_AT_ONCE = {**SMALL, "stop_timeout_ms": 0}


def be_quick() -> None:
    """What is tried again, is at once."""
    window_module.READ_ATTEMPTS = 2
    recounting_module.PAUSE = recounting_module.READ_PAUSE = background_module.FAILURE_PAUSE = 0.01


def ring_of(producer: RecoverableProducer) -> Ring:
    assert producer._opened is not None
    return producer._opened.directory.ring


def rot(disk: Disk, page: int) -> None:
    """That page of the ring is bad from now on, and not in memory any more."""
    disk.fail("read", errno.EIO, name="ring", start=page, end=page + PAGE)
    (disk.mount / "wal" / "0" / "ring").open("rb").close()


Frames = dict[int, dict[int, range]]
"""by slot of the file, the bytes that each record's frame has there"""


def standing_in(ring: Ring, page: int, frames: dict[int, range]) -> Damage:
    """What goes with a page; ``frames`` of the slot that it is in."""
    lost = [number for number, frame in frames.items() if frame.start < page + PAGE and frame.stop > page]
    assert 0 < len(lost) < len(frames), "some go, and some stay"
    return Damage(ring.epoch, lost[0], lost[-1], ring.slot_of(lost[0]).header.ordinal, frames[lost[0]].start)


async def publish_into_slots(producer: RecoverableProducer, ledger: Ledger) -> Frames:
    """As many records as fill some; by then nothing of them counts as memory of the process."""
    ring, frames = ring_of(producer), Frames()
    for _ in range(RECORDS):
        assert await ledger.publish(producer, size=LARGE) is None
        slot, place = ring._slot, ring.recent_places[ring.sequence % RECENT]
        start = slot.file_offset + (place - fmt.SETTLE_WORD) * fmt.WORD
        frames.setdefault(slot.index, {})[ring.sequence] = range(start, slot.file_offset + slot.tail)
    await asyncio.sleep(GIVEN_BACK)
    return frames


async def everything_is_told(producer: RecoverableProducer) -> None:
    await producer.flush(timeout_ms=20_000)
    await until(lambda: producer.statistics().records_left == 0)
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.lost, now


async def rot_under_a_producer(place: Path) -> None:
    """While the brokers are down; and once more, of what a process has left that stopped in time."""
    ledger = Ledger()
    be_quick()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        wal, servers = disk.mount / "wal", cluster.bootstrap_servers
        async with RecoverableProducer(wal, bootstrap_servers=servers, **CLOSED_AT_ONCE) as producer:
            ring, frames = ring_of(producer), await publish_into_slots(producer, ledger)
            first = standing_in(ring, SLOT + 2 * PAGE, frames[1])
            rot(disk, SLOT + 2 * PAGE)
            cluster.broker_up()
            await everything_is_told(producer)
            figures = producer.statistics()
            assert ring.damage == [first]
            assert figures.missing == figures.lost == first.count
            assert (figures.delivered, producer.state) == (RECORDS - first.count, "connected")
            cluster.broker_down()
            frames = await publish_into_slots(producer, ledger)
            index = max(frames) - 1
            second = standing_in(ring, index * SLOT + PAGE, frames[index])
            rot(disk, index * SLOT + PAGE)
        cluster.broker_up()
        for told in ([second], []):
            async with RecoverableProducer(wal, bootstrap_servers=servers, **SMALL) as producer:
                await everything_is_told(producer)
                assert ring_of(producer).damage == told
                assert producer.statistics().missing == sum(damage.count for damage in told)
        await ledger.check_kafka(servers, missing=first.count + second.count)


def test_a_sector_that_rots_under_a_producer_costs_the_records_in_it_and_each_is_named(tmp_path: Path) -> None:
    done = play(rot_under_a_producer, tmp_path, prefix=fuse())
    assert done.stderr.count("records are missing from the file ring") == 2


# -- what was read before --------------------------------------------------------------------------------------------

PAGE_LOST = SLOT + 2 * PAGE


async def rot_in_an_outage(place: Path) -> None:
    """The records are in memory, too: they need not be read."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        wal, servers = disk.mount / "wal", cluster.bootstrap_servers
        async with RecoverableProducer(wal, bootstrap_servers=servers, **SMALL) as producer:
            await ledger.publish_all(producer, RECORDS)
            await asyncio.sleep(GIVEN_BACK)
            rot(disk, PAGE_LOST)
            cluster.broker_up()
            await nothing_is_lost(disk, producer, ledger)
        await ledger.check_kafka(servers)
        await start_once_more(wal, servers, ledger)


async def rot_in_flight(place: Path) -> None:
    """Between the sending and the acknowledgement."""
    ledger = Ledger()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        wal, servers = disk.mount / "wal", cluster.bootstrap_servers
        async with RecoverableProducer(wal, bootstrap_servers=servers, **SMALL) as producer:
            await ledger.publish_all(producer, 1)
            await producer.flush(timeout_ms=20_000)
            cluster.round_trip_ms(1000)
            receipts = [await producer.publish(TOPIC, b"x" * 1000, partition=number % 2) for number in range(12)]
            await until(lambda: producer.statistics().in_flight >= 12)
            await asyncio.sleep(GIVEN_BACK)
            rot(disk, 2 * PAGE)
            cluster.round_trip_ms(0)
            reports = [await receipt.delivered(timeout_ms=20_000) for receipt in receipts]
            assert [report.status for report in reports] == ["delivered"] * 12
            await nothing_is_lost(disk, producer, ledger)
        await start_once_more(wal, servers, Ledger())


async def nothing_is_lost(disk: Disk, producer: RecoverableProducer, ledger: Ledger) -> None:
    """And the slot is used again; not its bad page, which an allocation in place of this file system's would read."""
    await everything_is_told(producer)
    assert disk.hits() > 0
    disk.heal()
    figures = producer.statistics()
    assert (figures.missing, figures.lost, figures.delivered) == (0, 0, figures.accepted)
    await ledger.publish_all(producer, RECORDS)
    await everything_is_told(producer)
    assert producer.state == "connected"


async def start_once_more(wal: Path, servers: str, ledger: Ledger) -> None:
    async with RecoverableProducer(wal, bootstrap_servers=servers, **SMALL) as producer:
        await ledger.publish_all(producer, RECORDS)
        await everything_is_told(producer)
        figures = producer.statistics()
        assert (figures.recovered, figures.missing, figures.delivered) == (0, 0, RECORDS)


async def rot_while_somebody_waits(place: Path) -> None:
    """Some for records that are lost."""
    be_quick()
    with flaky(place) as disk, MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        wal, servers = disk.mount / "wal", cluster.bootstrap_servers
        async with RecoverableProducer(wal, bootstrap_servers=servers, **SMALL) as producer:
            receipts = [await producer.publish(TOPIC, b"x" * LARGE, key=b"k") for _ in range(RECORDS)]
            await asyncio.sleep(GIVEN_BACK)
            rot(disk, PAGE_LOST)
            waiting = [asyncio.create_task(receipt.delivered(timeout_ms=20_000)) for receipt in receipts]
            await asyncio.sleep(0.01)
            cluster.broker_up()
            told = await asyncio.gather(*waiting, return_exceptions=True)
            lost = [end for end in told if isinstance(end, BaseException)]
            assert all(isinstance(end, PermanentDeliveryError) for end in lost), lost
            assert all("damage took the record from the disk" in str(end) for end in lost)
            await everything_is_told(producer)
            figures = producer.statistics()
            assert 0 < len(lost) == figures.lost == figures.missing
            assert figures.delivered == RECORDS - len(lost)


@pytest.mark.parametrize(
    "scenario", [rot_in_an_outage, rot_in_flight, rot_while_somebody_waits], ids=lambda s: s.__name__
)
def test_a_page_that_was_given_back_and_cannot_be_read_any_more_is_no_signal(
    tmp_path: Path, scenario: Scenario
) -> None:
    play(scenario, tmp_path, prefix=fuse())
