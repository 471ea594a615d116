"""Records that lie in the directories of a ``wal_dir``, as text and as JSON."""

from __future__ import annotations

import base64
import pathlib
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from aiorecover.cli.endings import FAILED
from aiorecover.record_id import RECORD_ID_HEADER
from aiorecover.reporting import context_of
from aiorecover.ring.damage import kept_aside
from aiorecover.ring.files import Files
from aiorecover.ring.inspect import waiting
from aiorecover.ring.lane import DEAD, UNASSIGNED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from aiorecover.ring.inspect import StoredRecord
    from aiorecover.ring.notes import Note

__all__ = [
    "NAMES",
    "Damage",
    "New",
    "about",
    "context_in",
    "lines",
    "stored",
    "text_of",
    "topic_of",
    "without_bytes",
    "write_lines",
]

NAMES = {UNASSIGNED: "unassigned", DEAD: "dead letters"}
BYTES_SHOWN = 200  # of a key, a value or a header: a line of a terminal or two
_NO_UTF8 = 0xDC00  # where "surrogateescape" puts a byte that is not UTF-8


class Damage:
    """Count what is damaged while records are read, and report it on stderr."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._found, self._reported = Counter[pathlib.Path](), Counter[pathlib.Path]()

    def look(self, path: pathlib.Path) -> None:
        """Begin to count anew in a directory: what is kept aside there is damaged."""
        self._found[path] = kept_aside(path, Files())

    def add(self, path: pathlib.Path, count: int) -> None:
        """Count a checkpoint, heads of segments or batches of a directory."""
        self._found[path] += count

    def reported(self) -> int:
        """Write a line for each directory in which more is damaged than before; return the exit status."""
        for path in self._found - self._reported:
            message = "something is damaged, so records may be missing here or be wrong"
            sys.stderr.write(f"{path}: {message}: 'aiorecover verify' and the log name it count={self._found[path]}\n")
        self._reported |= self._found
        return FAILED if self._reported.total() else 0


def stored(
    paths: Iterable[pathlib.Path],
    topics: Collection[str] = (),
    *,
    dead: bool | None = False,
    damage: Damage | None = None,
) -> Iterator[tuple[pathlib.Path, StoredRecord]]:
    """Yield the records of these topics, empty: of all, in each directory; each partition in its order.

    ``dead``: only dead letters, or all but these; None: both. ``damage`` counts what is damaged; None: nothing does.

    Raises:
        WalError: a directory cannot be read.

    """
    for path in paths:
        if damage is not None:
            damage.look(path)
        for record in waiting(path, dead=dead, on_damage=None if damage is None else partial(damage.add, path)):
            if not topics or topic_of(record) in topics:
                yield path, record


def topic_of(record: StoredRecord) -> str:
    """Return the record's own topic; that of a dead letter stands in its note."""
    if record.partition == DEAD and record.note is not None:
        return record.note.topic or ""
    return record.topic


class New:
    """Tells records that were not there at the last look from those that were."""

    def __init__(self) -> None:
        """All are new at the first look."""
        self._newest: dict[tuple[pathlib.Path, str, int], tuple[int, int]] = {}

    def __call__(self, path: pathlib.Path, record: StoredRecord) -> bool:
        """Whether a record is new; asked for all records of a partition in their order."""
        _, epoch, sequence = record.record_id.split("/")
        order = int(epoch), int(sequence)
        lane = (path, record.topic, record.partition)
        # What waited for the topic's partitions to be known keeps its ids when it goes there.
        newest = self._newest.get(lane) or self._newest.get((path, record.topic, UNASSIGNED), (0, 0))
        self._newest[lane] = max(newest, order)
        return order > newest


def about(record: StoredRecord) -> dict[str, Any]:
    """Return everything about a record; keys, values and headers are bytes here, bytes in the context base64."""
    found, note = record.record, record.note
    described = {
        "id": record.record_id,
        "topic": topic_of(record),
        "partition": NAMES.get(record.partition, record.partition),
        "timestamp_ms": record.timestamp_ms,
        "key": found.key,
        "value": found.value,
        "headers": [{"name": name, "value": value} for name, value in found.headers if name != RECORD_ID_HEADER],
        "source": note and note.source,
        "context": context_in(note),
    }
    if record.partition == DEAD and note is not None:
        where = UNASSIGNED if note.partition is None else note.partition
        described |= {"partition": NAMES.get(where, where), "dead_letter": note.error}
    return described


def context_in(note: Note | None) -> Any:
    """Return the caller's context as JSON has it; None where there is none, or where it is damaged."""
    try:
        return msgspec.to_builtins(context_of(note), str_keys=True)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def without_bytes(described: dict[str, Any]) -> dict[str, Any]:
    """Return it with keys, values and headers as text, or where they are none as ``…_base64``."""
    plain: dict[str, Any] = {}
    for name, value in described.items():
        if isinstance(value, bytes):
            try:
                plain[name] = value.decode()
            except UnicodeDecodeError:
                plain[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            plain[name] = [without_bytes(header) for header in value] if name == "headers" else value
    return plain


def lines(described: dict[str, Any]) -> Iterator[str]:
    """Yield what a record is, and below it what may be long."""
    fields = [f"{name}={described[name]}" for name in ("topic", "partition", "timestamp_ms")]
    yield " ".join([described["id"], *fields, _named("key", described["key"])])
    yield f"    {_named('value', described['value'])}"
    yield from (f"    {_named(one['name'], one['value'])}" for one in described["headers"])


def write_lines(path: pathlib.Path, lines: Iterable[bytes]) -> None:
    """Write a file that is not there yet, and say on stderr how many lines; where that fails, nothing of it stays.

    Raises:
        OSError: it is there, or cannot be written.

    """
    count = 0
    try:
        file = path.open("xb")
    except FileExistsError:
        raise FileExistsError(f"the file is there already: name a new one path={path}") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no such directory: make it path={path.parent}") from None
    with file:
        try:
            for count, line in enumerate(lines, 1):  # noqa: B007
                file.write(line + b"\n")
        except BaseException:
            path.unlink()
            raise
    sys.stderr.write(f"records written to {path}: {count:,}\n")


def _named(name: str, data: bytes | None) -> str:
    """Return ``name=data``; of a null, which is no text that looks like one, that there is none."""
    shown = text_of(name.encode())
    return f"no {shown}" if data is None else f"{shown}={text_of(data)}"


def text_of(data: bytes, most: int = BYTES_SHOWN) -> str:
    """Return readable text with nothing in it that a terminal would obey: that, and what is not UTF-8, as escapes."""
    text = data[:most].decode("utf-8", "surrogateescape")
    return "".join(map(_shown, text)) + ("…" if len(data) > most else "")


def _shown(char: str) -> str:
    code = ord(char)
    if _NO_UTF8 <= code < _NO_UTF8 + 256:
        return f"\\x{code - _NO_UTF8:02x}"
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
