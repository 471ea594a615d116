"""`producer.dead_letters`: what Kafka refused for good, or what came too late, to be looked at and dealt with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import aiofiles
import msgspec

from aiorecover.core.reporting import batch_bytes, context_of
from aiorecover.errors import ConfigError, WalIOError
from aiorecover.kafka.router import DEAD_TOPIC
from aiorecover.ring.format import State
from aiorecover.ring.lane import DEAD, Lane
from aiorecover.ring.notes import Note, notes_by_index
from aiorecover.ring.records import decode, id_of
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.core.runtime import Runtime

REQUEUED_HEADER = "aiorecover-requeued"  # of a record that is published again: the id that was refused
ERROR_HEADER = "aiorecover-error"  # of a copy in ``dead_letter_topic``: why it was refused
ORIGIN_HEADER = "aiorecover-origin"  # and where it was to go: topic/partition
ID_HEADER = "aiorecover-id"
ALL = "all"

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


class DeadLetters:
    """The lane of dead letters, oldest first. It holds a quarter of the ring at the most; then lanes halt."""

    def __init__(self, runtime: "Callable[[], Runtime]") -> None:
        """``runtime()`` returns the opened producer's parts, or raises `ClosedError`."""
        self._get = runtime

    async def list(self) -> AsyncIterator[DeadLetter]:
        """Yield the letters that are there now.

        Raises:
            ClosedError: the producer is not running.
            WalIOError: the disk failed.

        """
        for batch in list(self._lane().queue):
            if not batch.done:
                for letter in await self._letters(batch):
                    yield letter

    async def requeue(self, record_id: str | None = None) -> int:
        """Publish one letter, or all of them, anew, under new ids; return how many.

        A letter is taken out once its copy is in the ring: killed in between, both are there.

        Raises:
            EncodeError, WalFullError: a copy could not be stored; those before it are published.
            ClosedError: the producer is not running.

        """
        runtime, done = self._get(), 0
        for batch in list(self._lane().queue):
            if batch.done:
                continue
            letters = await self._letters(batch)
            chosen = [one for one in letters if record_id in (None, one.record_id)]
            for letter in chosen:
                headers = [(name, value) for name, value in letter.headers if name != ID_HEADER]
                headers.append((REQUEUED_HEADER, letter.record_id.encode()))
                runtime.writer.append(letter.topic, letter.key, letter.value, letter.timestamp_ms, headers)
                done += 1
            await self._take_out(batch, {one.record_id for one in chosen}, len(letters))
        return done

    async def purge(self, what: str) -> int:
        """Forget one letter, by its record id, or ``"all"`` of them; return how many.

        Raises:
            ConfigError: ``what`` is neither.
            ClosedError: the producer is not running.

        """
        if what != ALL and what.count("/") != 2:  # noqa: PLR2004 - producer/epoch/sequence
            raise ConfigError(f'purge takes a record id, or "all" what={what!r:.100}')
        done = 0
        for batch in list(self._lane().queue):
            if batch.done:
                continue
            letters = await self._letters(batch)
            chosen = {one.record_id for one in letters if what in (ALL, one.record_id)}
            await self._take_out(batch, chosen, len(letters))
            done += len(chosen)
        return done

    async def export(self, path: str | Path) -> int:
        """Write the letters to a new file, a JSON object a line, bytes as base64; return how many.

        Raises:
            WalIOError: the file is there already, or cannot be written.
            ClosedError: the producer is not running.

        """
        number = 0
        try:
            async with aiofiles.open(path, "xb") as file:
                async for letter in self.list():
                    await file.write(Encode(letter) + b"\n")
                    number += 1
        except OSError as error:
            raise WalIOError(
                error.errno, f"the letters cannot be exported: name a new file: {error}", str(path)
            ) from error
        return number

    def _lane(self) -> Lane:
        return self._get().ring.lane(DEAD_TOPIC, DEAD)

    async def _letters(self, batch: Batch) -> _Letters:
        return letters_of(batch, await asyncio.to_thread(batch_bytes, batch))

    async def _take_out(self, batch: Batch, chosen: set[str], number: int) -> None:
        runtime = self._get()
        if not chosen or batch.done:
            return
        if len(chosen) == number:
            cold = batch.segment.mapping is None
            if cold:
                await asyncio.to_thread(batch.store, State.SETTLED, runtime.ring.epoch)
            runtime.ring.finish(batch, State.SETTLED, stored=cold)
            return
        await runtime.delivery.rewriter.leave_out(batch, chosen)


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
