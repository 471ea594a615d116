"""A ring opened in a test, with what delivery would do to it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

from aiorecover.ring import writer
from aiorecover.ring.backlog import Recovered, fill_lanes, recover
from aiorecover.ring.directory import Directory
from aiorecover.ring.files import Files
from aiorecover.ring.format import OWN_HEAD_SIZE, BatchState, Geometry
from aiorecover.ring.lane import Lane
from aiorecover.ring.loading import read_ahead, take_ahead
from aiorecover.ring.opening import open_ring
from aiorecover.ring.records import ATTRIBUTES_AT, CRC_AT, NULL, varint
from aiorecover.ring.ring import Limits, Ring
from aiorecover.ring.segments import Batch
from aiorecover.ring.writer import Receipt, Target

SMALL = Geometry(region=256 << 10, small=8192, large=32768, huge_unit=65536)
NOW_MS = 1_800_000_000_000


class Boots(Files):
    """The real files, on a machine that can claim to have booted again."""

    def __init__(self, boot: int = 1) -> None:
        super().__init__()
        self.boot = boot

    def boot_id(self) -> str:
        return f"{self.boot:032x}"


class Rig:
    """One life of a ring, without threads; `crash` leaves it as a kill -9 would."""

    def __init__(
        self, path: Path, files: Files | None = None, limits: Limits | None = None, geometry: Geometry = SMALL
    ) -> None:
        self.directory = Directory.take(path, files=files or Files())
        try:
            self.ring = Ring(self.directory, limits or Limits(64 << 20, 0, 2048), geometry)
            segments = open_ring(self.ring)
        except BaseException:
            self.directory.close()
            raise
        self.writer = writer.Writer(self.ring.producer_id, self.ring.epoch, self._find)
        self.ring.next_sequence = self.writer.next_sequence
        self.recovered: Recovered | None = None
        if segments:
            self.recovered = recover(self.ring, segments)
            fill_lanes(self.ring, self.recovered)

    def _find(self, topic: str, key: Any, partition: int | None) -> Target:
        lane = self.ring.lane(topic, partition or 0)
        return lane.published, NULL if key is None else varint(len(key)) + key

    def publish(self, number: int, *, lane: int = 0, size: int = 60, note: bytes | None = None) -> Receipt:
        """Store a record whose value begins with its number."""
        value = (b"%d:" % number).ljust(size, b".")
        receipt: Receipt = self.writer.append("topic", b"key", value, NOW_MS + number, None, lane, note)
        return receipt

    def flush(self) -> None:
        job = self.ring.flusher.begin()
        try:
            self.ring.flusher.run(job)
        except BaseException as error:
            self.ring.flusher.complete(job, error)
            raise
        self.ring.flusher.complete(job)

    def seal(self) -> None:
        for lane in self.ring.lanes.values():
            if lane.published.index:
                lane.published.seal()

    def waiting(self) -> Iterator[Batch]:
        """Settle and yield every batch that waits, lane by lane, in order."""
        self.seal()
        for lane in list(self.ring.lanes.values()):
            yield from self.drain(lane)

    def drain(self, lane: Lane) -> Iterator[Batch]:
        while not lane.idle:
            if lane.head is None or lane.short:
                take_ahead(self.ring, lane, read_ahead(self.ring, lane))
            batch = lane.head
            if batch is None:
                continue
            yield batch
            self.ring.finish(batch, BatchState.SETTLED)

    def numbers(self) -> list[int]:
        """Deliver everything; the numbers of the records, as aiokafka's reader sees them."""
        return [number for batch in self.waiting() for number in numbers_of(batch)]

    def crash(self) -> None:
        """End as kill -9 does: nothing more is stored."""
        self.ring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()


def numbers_of(batch: Batch) -> list[int]:
    """The numbers in a batch, read by aiokafka as a broker would get it."""
    batch.store_identity((1, 0, 0), 1, batch.lane.ring.epoch)
    data = bytearray(batch.segment.read(batch.at + OWN_HEAD_SIZE, batch.end))
    data[CRC_AT:ATTRIBUTES_AT] = calc_crc32c(bytes(data[ATTRIBUTES_AT:])).to_bytes(4, "big")
    reader = DefaultRecordBatch(bytes(data))
    assert reader.validate_crc()
    return [int((record.value or b"").split(b":")[0]) for record in reader]


def flipped(path: Path, choose: Callable[[bytearray], None]) -> None:
    """Change a file's bytes."""
    data = bytearray(path.read_bytes())
    choose(data)
    path.write_bytes(data)
