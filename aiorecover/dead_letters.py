"""`producer.dead_letters`: what Kafka refused for good, to be looked at, published again, exported, purged."""

import asyncio
import errno
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiofiles
import msgspec
from aiokafka.errors import InvalidTimestampError

from aiorecover import record as rec
from aiorecover.delivery.dead_letters import Found
from aiorecover.delivery.moment import Moment
from aiorecover.delivery.refusal import Refusal
from aiorecover.errors import ConfigError, RecordTooLargeError, RecoverError, WalError, WalIOError
from aiorecover.opened import Opened
from aiorecover.wal.format import DIRECTORY_TEXT

REQUEUED_HEADER = "aiorecover-requeued"  # the id of the record that was refused, of each of its lives one
ALL = "all"  # no record's id: those have two slashes
PURGED = ', or pass "all", or what export() has returned'  # what `purge` takes beside an id
_UNREADABLE = Refusal(error="Undecodable", message="the dead letter itself cannot be read")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that Kafka will never take, or that became too old for it, and why.

    ``record_id`` is the record's own, as `Receipt.record_id`. ``error`` is the class of what Kafka answered and
    ``message`` its text; "DeliveryTimeout" is a record that was older than ``delivery_timeout_ms``.

    ``persisted`` tells whether the record may be in Kafka all the same. "not": each attempt was answered, with a
    refusal that comes before anything is appended. "possibly": an earlier attempt, of it or of the batch that it was
    cut from, had no answer, or one that a broker also gives after it has appended (a leader that loses the partition
    while it waits for its replicas says NotLeaderForPartition, just as one that never led it), or a process died of it.
    Where a repeat would hurt, look for the ``record_id`` in the topic's headers ``aiorecover-id`` before it is
    requeued. It is never "persisted". What a start could not trust any more of the attempts before it (after a power
    cut, in a copied directory) does not count.

    ``attempts`` counts the batches in which it was sent; ``first_ms`` and ``last_ms``: when, ms since 1970.
    ``partition`` is the one that refused it; of a record that expired before it had one, the one it named. A frame that
    cannot be decoded has no topic: its bytes are in ``payload``. ``owed``: its copy for ``dead_letter_topic`` is not
    stored in the ring yet.
    """

    record_id: str
    topic: str | None
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]] | None
    context: Any
    source: Any
    error: str
    message: str
    persisted: Literal["not", "possibly", "persisted"]
    attempts: int
    first_ms: int
    last_ms: int
    payload: bytes | None = None
    owed: bool = False


class DeadLetters:
    """The dead ring of a running producer. Each method is about what is there when it is called, oldest first.

    What damage took of the letters that were there at the start is told (`statistics().missing`, an ERROR in the log)
    once they were read: by a first call, or in the background, from some seconds behind the start on.

    Each raises `RecoverError` in another event loop than the producer's; nothing has happened then.
    """

    def __init__(self, opened: Callable[[], Opened]) -> None:
        """``opened`` gives what is open, or raises `ClosedError`."""
        self._opened = opened

    async def list(self) -> AsyncIterator[DeadLetter]:
        """Iterate: ``async for letter in producer.dead_letters.list()``. Few at a time are in memory.

        Raises:
            ClosedError: the producer is not running.

        """
        opened = self._opened()
        async with aclosing(opened.dead.letters()) as letters:
            async for found in letters:
                yield _shown(found)

    async def requeue(self, record_id: str | None = None, *, restamp: bool = False) -> int:
        """Publish one again, or all; how many. For after the topic was mended: who is refused again comes back.

        Each gets a new id, and its old one in the header ``aiorecover-requeued``, and keeps its timestamp; it comes
        behind what was published meanwhile. Its letter goes only after it is durable in the ring, so a crash in between
        publishes it twice; cancelled, it finishes the one that it is at. What cannot be decoded is left.

        Left is also a letter whose own record may still be sent, or both would arrive: its process died, or is about to
        (`on_delivery` is told of a dead letter first), between the letter and the settling of the record. That ends
        with the call of `on_delivery`, and after a start when delivery has come to that record; then it is settled, or
        Kafka takes it, and its letter goes.

        Args:
            record_id: as in the letter; None: all.
            restamp: what Kafka has refused for its timestamp (``InvalidTimestampError``) gets that of this moment: for
                what a wrong clock has stamped. Not by itself, as the timestamp may be the time that you gave.

        Raises:
            WalFullError: the ring is full; what was not requeued is still here.
            RecoverError: this is no id of this producer's records.
            ClosedError: the producer is not running.

        """
        opened = self._opened()
        _check_ours(record_id, opened.directory.producer_id)
        count = 0
        async with aclosing(opened.dead.letters()) as letters:
            async for found in letters:
                if record_id not in (None, found.record_id):
                    continue
                async with opened.dead.changing:  # nobody else publishes it, too
                    if opened.dead.waits(found):
                        count += await _to_its_end(_requeue(opened, found, restamp=restamp))
        await opened.make_room_for_dead_letters()
        return count

    async def purge(self, what: "str | Exported") -> int:
        """Forget some; how many. What halted for want of room in the dead ring goes on.

        To look at all of them and lose none that comes meanwhile: ``purge(await export(path))``. One whose copy for
        ``dead_letter_topic`` was not made yet (`owed`) gets none any more.

        Args:
            what: a letter's ``record_id``; what `export` has returned: the letters in its file, and no others; or
                ``"all"``: every one that is there now, also what nobody has ever looked at.

        Raises:
            RecoverError: this is no id of this producer's records, or no export of it since it was started.
            ClosedError: the producer is not running.

        """
        opened = self._opened()
        wanted, moment = None, None
        if isinstance(what, Exported):
            moment = what.moment
            if not opened.dead.knows(moment):
                message = "this was exported before the start, or by another producer: purge the letters by their ids"
                raise RecoverError(f"{message} producer_id={opened.directory.producer_id} path={what.path}")
        elif what != ALL:
            wanted = _check_ours(str(what), opened.directory.producer_id, or_else=PURGED)
        count = 0
        async with aclosing(opened.dead.letters(moment)) as letters:
            async for found in letters:
                if wanted in (None, found.record_id):
                    count += opened.dead.remove(found)
        await opened.make_room_for_dead_letters()
        return count

    async def export(self, path: str | os.PathLike[str]) -> "Exported":
        """Write all as JSON lines, bytes as base64. They stay here, too, until what is returned is given to `purge`.

        The file is complete and on the disk, or not there. It takes the place of one that is there, with the rights of
        that; where the path is a symbolic link, of what it leads to.

        Raises:
            ConfigError: it is no path, or would lie in ``wal_dir``, where no producer starts beside a file that is not
                its own.
            WalIOError: the file cannot be written, also an ``OSError``; the message says what to do.
            ClosedError: the producer is not running.

        """
        opened = self._opened()  # before there is a file
        target = _path_of(path)
        _check_outside(target, opened.directory.path.parent)
        moment, given_up = opened.dead.moment(), asyncio.Event()
        try:
            place = _place_of(target)
            count = await _to_its_end(_written(opened, moment, _beside(place), place, given_up), on_cancel=given_up.set)
        except WalError:  # of the dead ring
            raise
        except OSError as error:
            raise _unwritten(target, error) from error
        return Exported(path=target, letters=count, moment=moment)


@dataclass(frozen=True, slots=True)
class Exported:
    """What `DeadLetters.export` has written: so many ``letters``, to ``path``; to be given to `DeadLetters.purge`."""

    path: Path
    letters: int
    moment: Moment = field(repr=False)
    """Which ones; it means something only to the producer that wrote them, until that is stopped."""


def _check_outside(target: Path, wal_dir: Path) -> None:
    if target.resolve().is_relative_to(wal_dir.resolve()):
        message = (
            "the file would lie in wal_dir, and the next start refuse it as another program's: choose another path"
        )
        raise ConfigError(f"{message} path={target} wal_dir={wal_dir}")


def _path_of(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"the file must be named by a str or a path path={path!r:.100}")
    return Path(path)


def _place_of(target: Path) -> Path:
    """Where the file will be. A device, a pipe or a directory is none: nothing takes its place."""
    if not target.name or target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    place = Path(os.path.realpath(target)) if target.is_symlink() else target
    if place.exists() and not place.is_file():
        raise OSError(errno.EEXIST, "it is no file")
    return place


def _beside(target: Path) -> Path:
    """Another export may be under way: a name of its own."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def _unwritten(target: Path, error: OSError) -> WalIOError:
    """By the path that was given: the hidden file that becomes it is nobody's business."""
    remedy = {
        errno.EISDIR: "the path is a directory: name a file in it",
        errno.EEXIST: "the path is a device or a pipe, which stays as it is: choose another path",
        errno.ENOENT: "the file's directory is not there: make it, or choose another path",
        errno.ENOTDIR: "what should be the file's directory is a file: choose another path",
    }.get(error.errno or 0, "the file cannot be written: make room or give the right to, or choose another path")
    return WalIOError(error.errno, f"{remedy} error={error.strerror} path={target}", str(target))


async def _written(opened: Opened, moment: Moment, partial: Path, target: Path, given_up: asyncio.Event) -> int:
    """Write the letters of a moment; how many. Not to be cancelled: what a thread is opening would be left behind."""
    count = 0
    try:
        async with aiofiles.open(partial, "wb") as file, aclosing(opened.dead.letters(moment)) as letters:
            async for found in letters:
                await file.write(_line(_shown(found)))
                count += 1
                _check_wanted(given_up)
            await file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        _check_wanted(given_up)
        await asyncio.to_thread(_put_in_place, partial, target)
    except BaseException:
        with suppress(OSError):
            await asyncio.to_thread(partial.unlink)
        raise
    return count


def _check_wanted(given_up: asyncio.Event) -> None:
    if given_up.is_set():
        raise asyncio.CancelledError


def _put_in_place(partial: Path, target: Path) -> None:
    """Under its name also after a power cut: what is exported may be purged."""
    with suppress(FileNotFoundError):
        partial.chmod(stat.S_IMODE(target.stat().st_mode))
    partial.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _shown(found: Found) -> DeadLetter:
    letter, record = found.letter, _record_of(found)
    undecodable = found.payload if letter is None else letter.record
    topic, key, value, _, timestamp_ms, headers, context, source = record or [None] * 8
    return DeadLetter(
        record_id=found.record_id,
        topic=topic,
        partition=found.partition,
        key=key,
        value=value,
        timestamp_ms=timestamp_ms,
        headers=headers,
        context=context,
        source=source,
        payload=undecodable if record is None else None,
        owed=letter is not None and letter.owed,
        **msgspec.structs.asdict(_UNREADABLE if letter is None else letter.refusal),
    )


def _record_of(found: Found) -> rec.Record | None:
    """The record that was refused; None where it cannot be decoded."""
    if found.letter is None:
        return None
    try:
        return rec.decode(found.letter.record)
    except (ValueError, RecursionError):
        return None


async def _requeue(opened: Opened, found: Found, *, restamp: bool) -> int:
    return opened.dead.remove(found) if await _published_again(opened, found, restamp=restamp) else 0


async def _to_its_end(work: Coroutine[Any, Any, int], on_cancel: Callable[[], None] = lambda: None) -> int:
    """Also when whoever waits is cancelled: half of it would publish a record and keep its letter, or leave a file."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody asks any more
        raise


async def _published_again(opened: Opened, found: Found, *, restamp: bool) -> bool:
    record = _record_of(found)
    if record is None:
        return False
    topic, key, value, partition, timestamp_ms, headers, context, source = record
    if opened.may_go_on(found.position, topic):
        return False
    if restamp and found.letter is not None and found.letter.error == InvalidTimestampError.__name__:
        timestamp_ms = time.time_ns() // 1_000_000
    told = [*(headers or ()), (REQUEUED_HEADER, found.record_id.encode())]
    try:
        await opened.store((topic, key, value, partition, timestamp_ms, told, context, source))
    except RecordTooLargeError:  # it filled a slot to the last bytes: without the header it fits again
        await opened.store((topic, key, value, partition, timestamp_ms, headers, context, source))
    return True


def _check_ours(record_id: str | None, producer_id: str, or_else: str = "") -> str | None:
    """Raise for what is no id of this directory's records; those of its copies look as ours do, and match no letter."""
    if record_id is None:
        return None
    owner, *numbers = str(record_id).split("/")
    is_id = len(numbers) == 2 and all(number.isascii() and number.isdigit() for number in numbers)  # noqa: PLR2004
    if not is_id or owner[:DIRECTORY_TEXT] != producer_id[:DIRECTORY_TEXT] or len(owner) != len(producer_id):
        message = f"this is no record of this producer: take the id from dead_letters.list(){or_else}"
        raise RecoverError(f"{message} producer_id={producer_id} record_id={record_id!r:.100}")
    return record_id


def _line(letter: DeadLetter) -> bytes:
    try:
        return msgspec.json.encode(letter) + b"\n"
    except (TypeError, ValueError):  # JSON does not know every key that MessagePack does
        return msgspec.json.encode(msgspec.structs.replace(letter, context=repr(letter.context))) + b"\n"
