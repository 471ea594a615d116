"""`producer.dead_letters`: list, requeue, export and purge the records that Kafka refused, or that came too late."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import aiofiles
import msgspec

from aiorecover.errors import ConfigError, WalIOError
from aiorecover.kafka.router import DEAD_TOPIC
from aiorecover.record_id import RECORD_ID_HEADER, parse_record_id
from aiorecover.reporting import batch_bytes, context_of
from aiorecover.ring.lane import DEAD
from aiorecover.ring.notes import Note, encode_payload, notes_by_index
from aiorecover.ring.records import decode, id_of
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.runtime import Runtime

REQUEUED_HEADER = "aiorecover-requeued"  # of a record that is published again: the id that was refused
ALL = "all"
LOOK_S = 0.01  # between two looks whether earlier lives have been read
STEP = 64  # batches of letters that are requeued with one flush

Encode = msgspec.json.Encoder().encode


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that Kafka will never take, or that became too old for it, and why.

    ``record_id`` is the record's own, as `Receipt.record_id`. ``partition`` is -1 where it was not known.
    ``timestamp_ms``: milliseconds since 1970. ``context``: the caller's, as plain data.
    """

    record_id: str
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]
    error: str
    context: Any = None


_Letters: TypeAlias = list[DeadLetter]
_Batches: TypeAlias = list[Batch]


class DeadLetters:
    """The lane of dead letters, oldest first. It holds a quarter of the ring at most; beyond that, lanes halt."""

    def __init__(self, runtime: "Callable[[], Runtime]") -> None:
        """``runtime()`` returns the opened producer's parts, or raises `ClosedError`."""
        self._get = runtime

    async def list(self) -> AsyncIterator[DeadLetter]:
        """Yield the letters that are there now.

        Raises:
            ClosedError: the producer is not running.
            WalIOError: the disk failed.

        """
        await self._get().read()
        for batch in await self._batches():
            for letter in await self._letters(batch):
                yield letter

    async def requeue(self, record_id: str | None = None) -> int:
        """Publish one letter, or all of them, anew, under new ids; return how many.

        They keep partition and timestamp. A letter is taken out once the new record is durable: where the process is
        killed or the producer stopped in between, both are there.

        Raises:
            ConfigError: ``record_id`` is no record id.
            EncodeError, WalFullError: a copy could not be stored; those before it are published.
            ClosedError: the producer is not running, or was stopped meanwhile.
            WalIOError: the disk failed.

        """
        if record_id is not None:
            _check_id(record_id)
        return await self._take_out(record_id or ALL, anew=True)

    async def purge(self, what: str) -> int:
        """Forget one letter, by its record id, or ``"all"`` of them; return how many.

        Raises:
            ConfigError: ``what`` is neither.
            ClosedError: the producer is not running, or was stopped meanwhile.
            WalIOError: the disk failed.

        """
        if what != ALL:
            _check_id(what)
        return await self._take_out(what, anew=False)

    async def export(self, path: str | Path) -> int:
        """Write the letters to a new file, a JSON object a line, bytes as base64; return how many.

        The file is durable when this returns, and gone where it fails.

        Raises:
            ConfigError: ``path`` is no path.
            WalIOError: the file is there already, or cannot be written.
            ClosedError: the producer is not running.

        """
        if not isinstance(path, str | os.PathLike):  # a number would be a descriptor
            raise ConfigError(f"name a new file: pass a path as str or Path path={path!r:.100}")
        number = 0
        try:
            async with aiofiles.open(path, "xb") as file:
                try:
                    async for letter in self.list():
                        await file.write(Encode(letter) + b"\n")
                        number += 1
                    await file.flush()
                    await asyncio.to_thread(os.fsync, file.fileno())
                except BaseException:
                    os.unlink(path)  # noqa: PTH108 - not awaited: the caller may be cancelled
                    raise
        except OSError as error:
            raise WalIOError(
                error.errno, f"the letters cannot be exported: name a new file: {error}", str(path)
            ) from error
        return number

    async def _batches(self) -> _Batches:
        """Return the batches that hold letters now, once what earlier lives left is known."""
        while not self._get().lanes_filled.is_set():  # noqa: ASYNC110 - raises once the producer is stopped
            await asyncio.sleep(LOOK_S)
        return [batch for batch in self._get().ring.lane(DEAD_TOPIC, DEAD).queue if not batch.done]

    async def _letters(self, batch: Batch) -> _Letters:
        self._get()
        data = await asyncio.to_thread(batch_bytes, batch)
        self._get()
        return [] if batch.done else letters_of(batch, data)  # a batch that is done may have been overwritten

    async def _take_out(self, what: str, *, anew: bool) -> int:
        """Take letters out, some batches at a time; ``anew``: publish them again before."""
        runtime, done = self._get(), 0
        await runtime.read()
        rewriter = runtime.delivery.rewriter
        if runtime.ring.flusher.failed is not None:
            raise runtime.ring.flusher.failed
        batches = await self._batches()
        for start in range(0, len(batches), STEP):
            gone: dict[Batch, tuple[set[str], int]] = {}
            await rewriter.taking_out.acquire()
            try:
                for batch in batches[start : start + STEP]:
                    letters = await self._letters(batch)
                    for letter in letters:
                        if what in (ALL, letter.record_id):
                            if anew:
                                _publish(runtime, letter)
                            gone.setdefault(batch, (set(), len(letters)))[0].add(letter.record_id)
            finally:
                await rewriter.take_out(gone)  # and release the lock
            done += sum(len(ids) for ids, _ in gone.values())
        return done


def _check_id(record_id: object) -> None:
    if not isinstance(record_id, str) or parse_record_id(record_id) is None:
        raise ConfigError(f'no record id: take it from a letter or a receipt, or say "all" got={record_id!r:.100}')


def _publish(runtime: "Runtime", letter: DeadLetter) -> None:
    """Publish a letter anew, with its context, to its partition as far as there is one."""
    headers = [one for one in letter.headers if one[0] not in (RECORD_ID_HEADER, REQUEUED_HEADER)]
    headers.append((REQUEUED_HEADER, letter.record_id.encode()))
    known = 0 <= letter.partition < runtime.ring.topics.get(letter.topic, 0)
    partition = letter.partition if known else None
    note = None if letter.context is None else encode_payload(Note(encode_payload(letter.context)))
    runtime.writer.append(letter.topic, letter.key, letter.value, letter.timestamp_ms, headers, partition, note)


def letters_of(batch: Batch, data: tuple[bytes, bytes]) -> list[DeadLetter]:
    """Return the letters of a batch in the lane of dead letters."""
    records, raw = data
    notes = notes_by_index(raw)
    found, at = [], 0
    while at < len(records):
        record, at = decode(records, at)
        note = notes.get(record.index, Note())
        found.append(
            DeadLetter(
                record_id="{}/{}/{}".format(*id_of(records, at)),
                topic=note.topic or "",
                partition=-1 if note.partition is None else note.partition,
                key=record.key,
                value=record.value,
                timestamp_ms=batch.base + record.timestamp_delta,
                headers=record.headers,
                error=note.error or "",
                context=context_of(note),
            )
        )
    return found
