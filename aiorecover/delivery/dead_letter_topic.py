"""Publishes dead letters to the topic that ``dead_letter_topic`` names, at least once.

Through the ring, as every other record: so the copy survives a crash, follows the topic's metadata, and is repeated
until Kafka has it. A letter says whether it is still owed. Once its copy is durable in the ring, the letter is replaced
by one that owes nothing; a crash before that one is stored publishes it once more. It is not done where the record is
refused, because that record may be what keeps a full ring full: it is settled first. With this option letters stand in
the dead ring in the order of their publication here. A copy that is refused itself becomes a dead letter and is not
copied again. Letters from before there was a topic owe nothing.

Headers: those of the record, then, where Kafka Connect has a name for it, Connect's.

    __connect.errors.topic, __connect.errors.partition     where it was to go
    __connect.errors.exception.class.name                  the error's class
    __connect.errors.exception.message                     its text
    aiorecover-dlq-id                                      the record's id
    aiorecover-dlq-timestamp                               its timestamp, ms since 1970; the copy's own is the present
    aiorecover-dlq-attempts                                how often it was sent
    aiorecover-dlq-time                                    when it was refused, ms since 1970
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec

from aiorecover import record as rec
from aiorecover.delivery.dead_letters import DeadLetters, Found
from aiorecover.errors import RecordTooLargeError, WalFullError

log = logging.getLogger("aiorecover.delivery")

ROOM_PAUSE = 0.5  # seconds until a full ring is asked again
PAID_LOOK = 0.05  # seconds between two looks of who waits until nothing is owed
CONNECT = "__connect.errors."
OWN = "aiorecover-dlq-"


class DeadLetterTopic:
    """The loop that publishes what is owed."""

    def __init__(self, dead: DeadLetters, topic: str, store: Callable[[rec.Record], Awaitable[None]]) -> None:
        """``store`` accepts a record; it is durable when that returns."""
        self._dead = dead
        self._topic = topic
        self._store = store
        self._busy = True  # there may be letters that nobody told of
        self._stored = 0  # copies, for `paid`
        self._told = 0

    async def run(self) -> None:
        """For ever: first what an earlier process owed, then what comes."""
        await self._look_at_all()
        while True:
            self._busy = False
            found = await self._dead.next_owed()
            self._busy = True
            if found is None:
                await self._look_at_all()
            else:
                await self._publish(found)

    async def paid(self) -> bool:
        """Wait until every letter that is owed has its copy in the ring; whether one was stored since the last call.

        Raises:
            WalError: the disk failed, and the next start stores them.

        """
        while self._busy or self._dead.owes:  # a letter may also be purged meanwhile, by anybody
            self._dead.check()
            await asyncio.sleep(PAID_LOOK)
        before, self._told = self._told, self._stored
        return self._stored > before

    async def _look_at_all(self) -> None:
        async with aclosing(self._dead.letters()) as letters:
            async for found in letters:
                if found.letter is not None and found.letter.owed:
                    await self._publish(found)

    async def _publish(self, found: Found) -> None:
        if found.letter is None:
            return
        copy = copy_of(found, self._topic, time.time_ns() // 1_000_000)
        while True:
            try:
                await self._store(copy)
                self._stored += 1
                break
            except WalFullError:
                await asyncio.sleep(ROOM_PAUSE)
            except RecordTooLargeError as error:
                log.error(  # noqa: TRY400 - it is told in one line
                    "a dead letter does not fit the ring with its headers: it stays in the dead ring alone error=%s",
                    error,
                )
                break
        await self._replace(found)

    async def _replace(self, found: Found) -> None:
        """Have the letter say that it is not owed any more."""
        if found.letter is None:
            return
        paid = msgspec.structs.replace(found.letter, owed=False)
        while self._dead.waits(found):
            try:
                await self._dead.replace(found, paid)
            except WalFullError:
                await self._dead.room()
            else:
                return


def copy_of(found: Found, topic: str, now_ms: int) -> rec.Record:
    """The record for the dead-letter topic, without the publisher's context.

    Raises:
        ValueError: the letter holds no record that can be decoded; such letters are never owed.

    """
    letter = found.letter
    if letter is None:
        raise ValueError("a frame without a letter is owed to nobody")
    original, key, value, _, timestamp_ms, headers, _, source = rec.decode(letter.record)
    told: list[rec.Header] = [
        (f"{CONNECT}topic", original.encode()),
        (f"{CONNECT}partition", b"" if found.partition is None else b"%d" % found.partition),
        (f"{CONNECT}exception.class.name", letter.error.encode()),
        (f"{CONNECT}exception.message", letter.message.encode()),
        (f"{OWN}id", found.record_id.encode()),
        (f"{OWN}timestamp", b"%d" % timestamp_ms),
        (f"{OWN}attempts", b"%d" % letter.attempts),
        (f"{OWN}time", b"%d" % letter.last_ms),
    ]
    return topic, key, value, None, now_ms, [*(headers or ()), *told], None, source
