"""A start with everything still to do, on a disk with so many pages left: none, one, two, and on until all finds room.

What waits: records for lanes that get through, with a batch of each in flight, records of a lane that does not (some of
them copied to the retry ring), and records that Kafka refuses, more than the reserved slot of the dead ring holds. Then
lanes come that have no block in `lanes`. The stand-in for Kafka drops no repeats, and takes none.
"""

import asyncio
import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka.errors import NotEnoughReplicasError, PolicyViolationError

from aiorecover import RecoverableProducer, WalFullError
from aiorecover.delivery import dead_letters as dead_letters_module
from aiorecover.delivery import journaling as journaling_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import stalled as stalled_module
from aiorecover.delivery import stalls as stalls_module
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.session import Session
from tests.delivery.refusing import Broker, Sent
from tests.faults.ledger import SLOT, SMALL, told
from tests.faults.scene import play, small_disk
from tests.faults.test_full_disk import only
from tests.support.eventually import until

KNOWN, MORE = 4, 12  # lanes that have a block, and with those that come later: more than an opening has blocks for
STUCK, REFUSED = "stuck", "refused"
LETTER = b"l" * 5000  # three fit a slot
LETTERS = 8
TURNS = 6
ROUND = 20 * SLOT  # where records are moved out of the way
FULL = "the disk is full: wait for delivery to free space, or free space on the disk ring="
OPTIONS: dict[str, Any] = {**SMALL, "stop_timeout_ms": 0, "checkpoint_interval_ms": 10, "retry_backoff_max_ms": 20}
PAGES = [*range(13), 16, 24, 48, 96, 128]  # a slot has 4, a block of the lanes 9, eight of them 66


def be_quick() -> None:
    for name, value in (("STALLED_AFTER", 0.05), ("OTHERS_AFTER", 0.02), ("FIRST_REST", 0.02), ("FIRST_TRIAL", 0.1)):
        setattr(stalls_module, name, value)
    stalled_module.GATHER = 0.01
    journaling_module.ROOM_PAUSE = dead_letters_module.ROOM_LOOK = 0.02


class Published:
    """What was accepted, in its order."""

    def __init__(self, others: "Published | None" = None) -> None:
        self.values: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.count = 0
        if others is not None:
            self.count = others.count
            self.values.update((place, list(values)) for place, values in others.values.items())

    async def publish(self, producer: RecoverableProducer, topic: str, partition: int = 0) -> None:
        value = b"%06d " % self.count + (LETTER if topic == REFUSED else b"v" * 900)
        await producer.publish(topic, value, partition=partition)
        self.values[topic, partition].append(value)
        self.count += 1

    def take(self, topic: str) -> list[bytes]:
        """What was published for a topic of one lane, which nobody asks for again."""
        return self.values.pop((topic, 0))

    async def publish_each(self, producer: RecoverableProducer, lanes: int) -> None:
        """One for each of some lanes, and one for the lane that is stuck."""
        for partition in range(lanes):
            await self.publish(producer, "t", partition)
        await self.publish(producer, STUCK)


class Kafka(Broker):
    """A topic is stuck, until it `heals`; another one takes nothing."""

    def __init__(self, before: "Kafka | None" = None) -> None:
        super().__init__(t=MORE, **{STUCK: 1, REFUSED: 1})
        self._is_stuck = True
        self._given: int = 0 if before is None else before._given
        self.refuses = self._verdict
        if before is not None:
            self.log = {place: list(values) for place, values in before.log.items()}
            self._next = dict(before._next)
        setattr(sessions_module, "Session", self.session())  # noqa: B010 - of this process, which is a scenario's own

    def session(self) -> type[Session]:
        kafka, like_broker = self, super().session()

        class Numbering(like_broker):  # type: ignore[misc,valid-type]
            async def identity(self) -> Identity:
                kafka._given += 1
                return Identity(kafka._given, 0)

        return Numbering

    def heals(self) -> None:
        self._is_stuck = False

    def _verdict(self, records: list[Sent]) -> BaseException | None:
        topic = records[0].topic
        if topic == REFUSED:
            return PolicyViolationError()
        return NotEnoughReplicasError() if topic == STUCK and self._is_stuck else None

    def has(self, published: Published, lanes: int) -> bool:
        """All that was published for some lanes."""
        places = [("t", partition) for partition in range(lanes)]
        return all(self.log.get(place, []) == published.values.get(place, []) for place in places)


async def leave_a_backlog(wal: Path, published: Published) -> Kafka:
    kafka = Kafka()
    options = {**OPTIONS, "wal_max_bytes": ROUND, "on_full": "wait"}
    async with RecoverableProducer(wal, bootstrap_servers="nowhere:1", **options) as producer:
        while producer.statistics().slots_moved < 2:
            await published.publish_each(producer, KNOWN)
            await asyncio.sleep(0.001)
        await until(lambda: kafka.has(published, KNOWN))
        kafka.answers.clear()
        for _ in range(LETTERS):
            await published.publish_each(producer, KNOWN)
            await published.publish(producer, REFUSED)
        await until(lambda: kafka.held >= KNOWN)
    return kafka


class Image:
    """What stands in the files of a directory, to be put back: into the same files, which are known by their inodes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._content = {path.name: path.read_bytes() for path in directory.iterdir()}

    def put_back(self) -> None:
        for path in self._directory.iterdir():
            assert path.name in self._content
        for name, content in self._content.items():
            with (self._directory / name).open("r+b") as file:
                file.truncate(len(content))
                os.posix_fallocate(file.fileno(), 0, len(content))
                file.write(content)


async def start_on_every_disk(place: Path) -> None:
    be_quick()
    before = Published()
    kafka = await leave_a_backlog(place / "wal", before)
    image = Image(place / "wal" / "0")
    reached = []
    for pages in PAGES:
        image.put_back()
        reached.append(await start_with(place, pages, Kafka(kafka), Published(before)))
    assert (reached[0], reached[-1]) == ("no room for records", "room for all"), reached


async def start_with(place: Path, pages: int, kafka: Kafka, published: Published) -> str:
    """All that is promised without any room; then as far as there is some; and to the end once there is."""
    with only(place, pages):
        async with RecoverableProducer(place / "wal", bootstrap_servers="nowhere:1", **OPTIONS) as producer:
            await until(lambda: kafka.has(published, KNOWN))
            await until(lambda: producer.statistics().dead_lettered == LETTERS)
            await until(lambda: producer.statistics().slots_moved > 0)
            refused = await publish_until_refused(producer, published)
            await until(lambda: kafka.has(published, MORE))  # those without a block take turns with the others
            all_adds_up(producer)
            (place / "filler").unlink()
            kafka.heals()
            for _ in range(MORE):
                await accepted_at_last(producer, published)
            await producer.flush(timeout_ms=20_000)
            all_adds_up(producer)
            assert [letter.value async for letter in producer.dead_letters.list()] == published.take(REFUSED)
    assert kafka.log == published.values
    return "no room for records" if refused else "room for all"


async def publish_until_refused(producer: RecoverableProducer, published: Published) -> bool:
    """As much as has room, and no more than the disk has without the filler; whether it was refused."""
    refusal = None
    try:
        for _ in range(TURNS):
            await published.publish_each(producer, MORE)
    except WalFullError as error:
        refusal = told(error)
    assert refusal is None or refusal.startswith(FULL)
    return refusal is not None


async def accepted_at_last(producer: RecoverableProducer, published: Published, partition: int | None = None) -> None:
    """A full ring accepts once it has come down to its low mark. ``partition``: None: any, in turn."""
    chosen = published.count % MORE if partition is None else partition
    async with asyncio.timeout(20):
        while True:
            with suppress(WalFullError):
                return await published.publish(producer, "t", chosen)
            await asyncio.sleep(0.005)


def all_adds_up(producer: RecoverableProducer) -> None:
    """I9."""
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.lost + now.pending, now
    assert (now.lost, now.missing, now.state) == (0, 0, "connected"), now


def test_a_start_with_a_backlog_on_a_disk_with_so_many_pages_left_loses_nothing_and_goes_on_with_room(
    tmp_path: Path,
) -> None:
    play(start_on_every_disk, tmp_path, prefix=small_disk(tmp_path, "size=4m"))
