"""Rings as data frames: ``spark.read.format("aiorecover").load(wal_dir)``, live or left behind.

For forensics, and to publish what a machine that died has left. Nothing is locked, changed or sent
(:mod:`aiorecover.wal.view`). Options:

- ``path``: a ``wal_dir``, or one instance directory in it, at the same place on every executor.
- ``rings``: of ``ring`` (what was published), ``retry`` (moved out of its way), ``dead`` (what Kafka refused for good),
  separated by commas. Default ``ring,retry``: what waits.
- ``settled``: ``true`` shows also what is done and not overwritten yet. Default ``false``.

Columns: ``directory`` (of the instance), ``ring``, ``state``, ``producer_id``, ``epoch``, ``sequence``, ``topic``,
``partition`` (null: not chosen yet), ``key``, ``value``, ``timestamp``, ``headers`` (as in Kafka, with the record id),
``slot`` and ``file_offset`` (where the frame stands), ``error``. The states:

- ``waiting``: to be delivered, or in the dead ring. ``settled``: done.
- ``missing``: damage took records away; ``error`` names them, of ``ring`` all (``sequence``: the first one); of the
  other two it says how many at most, and of ``retry`` between which two records, as far as that is known. So it does
  where the whole file is gone, emptied or zeroed. Where records may be gone that nothing names, ``error`` says that,
  and ``sequence`` is null. All of it is what ``aiorecover inspect`` says.
- ``unreadable``: of a slot, of the main ring or of an instance, nothing can be read; ``error`` says why. Where that is
  the main ring, the other two are read all the same.

In the last two ``topic`` is null. A record that cannot be decoded has its ``error`` and no ``topic``, either.

The main ring is read slot by slot, each its own partition of the data frame; the other two as a whole, each once for
every instance. Every record that waits from the first to the last moment is there. One that its owner moves meanwhile
may be there twice: ``dropDuplicates(["producer_id", "epoch", "sequence"])``. Where a directory's ``checkpoint``
is gone or damaged, nothing tells what it covered: what was moved may be there twice until its slot is used again, also
where it is done by now.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiorecover.errors import ConfigError, WalCorruptError, WalError, WalFormatError, WalIOError
from aiorecover.spark.options import refuse_unknown
from aiorecover.spark.ring_rows import SCHEMA, Rows
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import CHECKPOINT_LOST
from aiorecover.wal.instances import instances
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.view import WALKS, Damage, RecycledError, SlotView, frames_of, open_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiorecover.wal.ends import Ends
    from aiorecover.wal.instances import Instance
    from aiorecover.wal.view import FrameView, View

__all__ = ["SCHEMA", "RingReader", "check"]

_RINGS = (RING, RETRY, DEAD)
_OPTIONS = ("path", "rings", "settled")
_SPARKS = ("paths",)  # of load([...])
_OF_A_TABLE = {"owner", "provider"}  # among what Spark adds for CREATE TABLE; its reader gets no option at all
_SLOT_GONE = (
    "this slot is gone since the slots were listed, and nothing tells which records it held: put the file ring back, "
    "or publish what is missing again from where it came"
)


@dataclass
class _Slot(InputPartition):
    """One slot of the main ring; ``begins``, ``following`` and ``ends`` as in `frames_of`."""

    path: Path
    slot: SlotView
    begins: bool
    following: SlotView | None
    ends: Ends
    producers: Mapping[int | None, str | None]


@dataclass
class _Ring(InputPartition):
    """A whole ring."""

    path: Path
    ring: str


@dataclass
class _Missing(InputPartition):
    """What is missing of a ring and stood in none of its slots that are left."""

    path: Path
    ring: str
    damages: Sequence[Damage]
    producers: Mapping[int | None, str | None]


@dataclass
class _Doubt(InputPartition):
    """What may be missing, and nothing names."""

    path: Path
    error: str


@dataclass
class _Unreadable(InputPartition):
    """Something of which nothing can be read."""

    path: Path
    ring: str | None
    error: str


def check(options: Mapping[str, str]) -> tuple[Path, list[str], bool]:
    """The path, the rings and whether settled records are wanted.

    Raises:
        ConfigError: an option is wrong, or nothing of aiorecover is at the path.

    """
    if set(options) >= _OF_A_TABLE:
        raise ConfigError(
            "Spark hands on no options of a table: read rings with spark.read, or as a view, CREATE TEMPORARY VIEW ... "
            "USING aiorecover OPTIONS (path '/var/lib/orders/wal')"
        )
    refuse_unknown(options, _OPTIONS, _SPARKS, {})
    if "path" not in options:
        raise ConfigError('name one wal_dir, or an instance in it: .load("/var/lib/orders/wal")')
    path = Path(options["path"].removeprefix("file:"))
    rings = list(dict.fromkeys(ring.strip() for ring in options.get("rings", f"{RING},{RETRY}").split(",")))
    settled = options.get("settled", "false").lower()
    if not set(rings) <= set(_RINGS):
        raise ConfigError(f"rings are ring, retry and dead, separated by commas: {rings=}")
    if settled not in {"true", "false"}:
        raise ConfigError(f"settled is true or false: {settled=}")
    _instances(path)
    return path, rings, settled == "true"


def _instances(path: Path) -> list[Instance]:
    """At least one.

    Raises:
        ConfigError: nothing of aiorecover is at the path.

    """
    try:
        found = instances(path)
    except WalError as error:
        raise ConfigError(f"the directory cannot be read, name a wal_dir or an instance in it: {error}") from None
    if not found:
        raise ConfigError(f"nothing of aiorecover is here: name a wal_dir or an instance in it path={path}")
    return found


class RingReader(DataSourceReader):
    """Lists the slots on the driver, and reads them on the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise `ConfigError` for options that are wrong, or for columns of the user's own."""
        self._path, self._rings, self._settled = check(options)
        if schema != SCHEMA:
            raise ConfigError(f"the columns are given: leave out .schema(...) columns={schema.names}")

    def partitions(self) -> Sequence[InputPartition]:
        """Every slot of the main rings, each other ring, and what is missing without being in any of them.

        Raises:
            ConfigError: the directory is gone.

        """
        return [part for one in _instances(self._path) for part in self._parts(one.path)]

    def _parts(self, path: Path) -> Iterator[InputPartition]:
        others = [ring for ring in self._rings if ring != RING]
        try:
            with _view(path, RING) as view:
                if RING in self._rings:
                    yield from _slots(view, settled=self._settled)
                yield from _doubts(view, self._rings)
        except WalError as error:
            if RING in self._rings:
                yield _Unreadable(path, None, str(error))
                others = [ring for ring in others if _tells_more(path, ring)]
        yield from (_Ring(path, ring) for ring in others)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slot or of a ring.

        Raises:
            ConfigError: the directory is not on this machine, or not any more.

        """
        if isinstance(partition, _Slot):
            return _read_slot(partition, settled=self._settled)
        if isinstance(partition, _Ring):
            return _read_ring(partition, settled=self._settled)
        if isinstance(partition, _Missing):
            return Rows(partition.path, partition.ring).of_damage(partition.damages, partition.producers)
        if isinstance(partition, _Doubt):
            return Rows(partition.path, None).of_doubt(partition.error)
        if isinstance(partition, _Unreadable):
            return _read_unreadable(partition)
        return iter(())  # Spark's own, where there are none


def _view(path: Path, ring: str) -> View:
    """As `open_view`; what is wrong with the files is a row, but without the directory there is nothing to show.

    Raises:
        ConfigError: the directory is not there.
        WalError: as `open_view`.

    """
    try:
        return open_view(path, ring)
    except WalIOError as error:
        if error.errno == errno.ENOENT and not path.is_dir():
            raise ConfigError(
                f"the directory is not here: it must stand at the same place on every executor, and stay there while "
                f"it is read {path=!s} host={socket.gethostname()}"
            ) from None
        raise


def _tells_more(path: Path, ring: str) -> bool:
    """Whether there is anything to say of a ring where the main one cannot be read: its records, or its own error."""
    try:
        with _view(path, ring) as view:
            view.slots()
    except WalError as error:
        return not isinstance(error, WalCorruptError | WalFormatError)  # these come of the same
    return True


def _slots(view: View, *, settled: bool) -> Iterator[InputPartition]:
    slots = view.slots()
    live = [slot for slot in slots if slot.header is not None and (settled or not slot.covered)]
    producers: dict[int | None, str | None] = dict(view.producers.items())
    producers |= {slot.epoch: slot.producer_id for slot in live}
    before = view.gone_before(live[0] if live else None)
    if before:
        yield _Missing(view.path, view.ring, before, producers)
    epoch = None
    for slot, following in pairwise([*live, None]):
        assert slot is not None
        yield _Slot(view.path, slot, epoch != slot.epoch, following, view.ends, producers)
        epoch = slot.epoch
    for slot in slots:
        if slot.state == "damaged":
            message = "nothing of this slot can be read: its header is damaged, the bytes are left as they are"
            yield _Unreadable(view.path, view.ring, f"{message} file_offset={slot.file_offset}")


def _doubts(view: View, rings: Sequence[str]) -> Iterator[InputPartition]:
    """Of each instance; and why its next start would be refused."""
    try:
        yield from (_Doubt(view.path, doubt) for doubt in view.doubts(rings))
    except WalError as error:
        yield _Unreadable(view.path, None, str(error))
    if view.checkpoint is None and view.producer_id is not None:
        yield _Doubt(view.path, CHECKPOINT_LOST)


def _read_slot(part: _Slot, *, settled: bool) -> Iterator[pa.RecordBatch]:
    rows = Rows(part.path, RING)
    missing: list[Damage] = []
    frames = frames_of(
        part.slot,
        settled=settled,
        missing=missing,
        begins=part.begins,
        following=part.following,
        ends=part.ends,
    )
    try:
        yield from rows.of_frames(frames)
    except (RecycledError, WalIOError) as error:
        yield from rows.rest()
        if isinstance(error, WalIOError) and error.errno != errno.ENOENT:
            yield from _read_unreadable(_Unreadable(part.path, RING, str(error)))
            return
        yield from _gone(part, rows.last)
    yield from rows.of_damage(missing, part.producers)


def _gone(part: _Slot, last: int) -> Iterator[pa.RecordBatch]:
    """What a slot held behind sequence ``last`` (0: all of it) that is not there any more: recycled, or lost."""
    try:
        # What waited was moved; it is looked for where it was moved to, whenever that ring itself is read.
        with _view(part.path, RETRY) as view:
            first, end = _positions(part)
            moved = (frame for frame in _frames(view, settled=False) if first <= frame.position <= end)
            yield from Rows(part.path, RETRY).of_frames(moved)
        with _view(part.path, RING) as view:
            view.slots()
            begin = last + 1 if last else part.slot.first_sequence or 1
            damages = view.lost(part.slot, begin, part.following, part.ends)
    except WalError as error:
        yield from _read_unreadable(_Unreadable(part.path, RING, str(error)))
        return
    rows = Rows(part.path, RING)
    yield from rows.of_doubt(_SLOT_GONE) if damages is None else rows.of_damage(damages, part.producers)


def _positions(part: _Slot) -> tuple[int, int]:
    """The positions of what the slot had: at most those before the next slot."""
    first = part.slot.first_position
    if part.following is not None:
        return first, part.following.first_position - 1
    return first, fmt.position(first >> fmt.SEQUENCE_BITS, fmt.SEQUENCE_MASK)


def _read_ring(part: _Ring, *, settled: bool) -> Iterator[pa.RecordBatch]:
    try:
        with _view(part.path, part.ring) as view:
            rows = Rows(part.path, part.ring)
            yield from rows.of_frames(_frames(view, settled=settled))
            yield from rows.of_damage(view.missing)
            damaged = [slot for slot in view.slots() if slot.state == "damaged"]
    except WalError as error:
        yield from _read_unreadable(_Unreadable(part.path, part.ring, str(error)))
        return
    for slot in damaged:
        message = f"nothing of this slot can be read: its header is damaged file_offset={slot.file_offset}"
        yield from _read_unreadable(_Unreadable(part.path, part.ring, message))


def _frames(view: View, *, settled: bool) -> Iterator[FrameView]:
    """The ring once, and again where what was recycled meanwhile may stand behind it by now."""
    for _ in range(WALKS):
        yield from view.frames(settled=settled)
        if not view.unsure:
            return


def _read_unreadable(part: _Unreadable) -> Iterator[pa.RecordBatch]:
    return Rows(part.path, part.ring).of_error(part.error)
