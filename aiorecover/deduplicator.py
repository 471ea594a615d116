"""Tell repeated records from new ones by their ids, in whatever order they come. Pure: no clock, no I/O.

A record that was in flight when its producer died may be sent again, and a topic may be read twice: the id in the
header ``aiorecover-id`` is the same each time. Each producer and epoch has one bit for each sequence that was seen.

Bits, not intervals of sequences: a consumer mostly sees one partition of an epoch, whose sequences hardly ever follow
each other. A random sixth of a million records takes 174 KB of memory and 131 KB of storage as bits, 6.8 MB and 1.4 MB
as intervals (measured). A new record changes one page, a small row of a table.

The bits stand in pages of 4,096 sequences, some 700 bytes each. Beyond ``max_pages`` the page that was begun first is
forgotten, and its records count as new: the bound may let a repeat pass, and never loses a record.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from aiorecover.errors import ConfigError
from aiorecover.record_id import parse_record_id

PAGE: Final = 4096  # sequences: half a kilobyte of bits, little enough for a producer that publishes ten records
MAX_PAGES: Final = 16_384  # 13 MB, up to 67 million records: a crash repeats far fewer, those in flight
LEAST_PAGES: Final = 16  # with fewer, a few producers at once would push out each other's newest pages

_BYTES: Final = PAGE // 8
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)
_DIGITS_MOST: Final = 13  # of a sequence, so of its page's number
_VERSION: Final = 1
_TOPIC = re.compile("[a-zA-Z0-9._-]{1,249}")  # Kafka's rule

Page = tuple[str, int, int, str]
"""Producer id, epoch, number of the page (0 has the sequences up to 4,095), and the topic, or an empty text."""


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    pages: list[tuple[str, bytes]]  # in the order in which they were begun


class Deduplicator:
    """Remember which records were seen.

    A consumer calls `add` for each record, and stores its results, its offsets and `to_bytes` (or only `take_changes`)
    in one transaction. If that fails, begin again from what is stored: the records added since were not handled.

    A record that a forwarder copies into another topic, headers and all, has the id of its original. Name the topic,
    and it is another record: pages are kept for each topic.

    It is not for several threads at once, and serves any number of topics and partitions. Where partitions move between
    consumers, keep a state for each partition and store it with the partition. A repeat that comes in another partition
    is then new: that of a record without a key, or one after the number of partitions has changed.
    """

    def __init__(self, *, max_pages: int = MAX_PAGES) -> None:
        """Remember nothing yet.

        Args:
            max_pages: the most pages of 4,096 sequences that are kept: 16 or more.

        Raises:
            ConfigError: ``max_pages`` is no such number.

        """
        self.max_pages = _most(max_pages)
        self.forgotten = 0
        """Pages that were forgotten: their records count as new."""
        self._pages: dict[Page, bytearray] = {}
        self._changed: dict[Page, None] = {}
        self._in_table: set[Page] = set()  # the kept pages that the caller's table has

    def __len__(self) -> int:
        """Return the number of pages that are kept."""
        return len(self._pages)

    def __contains__(self, record: str | tuple[str, str]) -> bool:
        """Whether a record was added and not forgotten; name its id, or its id and topic, as it was added.

        Raises:
            ConfigError: that is no record id, or no topic.

        """
        page, byte, bit = _place(*record) if isinstance(record, tuple) else _place(record)
        return page in self._pages and bool(self._pages[page][byte] & bit)

    def add(self, record_id: str | None, topic: str | None = None) -> bool:
        """Remember a record; return whether it is new: none with this id came before (in ``topic``, if it is named).

        None, a record without an id (`record_id_of`), counts as new each time.

        Raises:
            ConfigError: that is no record id, or no topic.

        """
        if record_id is None:
            return True
        page, byte, bit = _place(record_id, topic)
        bits = self._pages.get(page) or self._begin(page)
        if bits[byte] & bit:
            return False
        bits[byte] |= bit
        self._changed[page] = None
        return True

    def take_changes(self) -> dict[str, bytes | None]:
        """Return the pages that changed since the last call, for a table with a row each; None: delete the row.

        A consumer that commits often stores less with it: a few hundred records change a few pages. `from_pages` reads
        the table back.
        """
        changed, self._changed = self._changed, {}
        self._in_table.update(page for page in changed if page in self._pages)
        return {_name(page): _stored(self._pages[page]) if page in self._pages else None for page in changed}

    def to_bytes(self) -> bytes:
        """Return everything that is remembered; `from_bytes` reads it back."""
        state = _State(_VERSION, [(_name(page), _stored(bits)) for page, bits in self._pages.items()])
        body = msgspec.msgpack.encode(state)
        return zlib.crc32(body).to_bytes(4, "big") + body

    @classmethod
    def from_bytes(cls, state: bytes, *, max_pages: int = MAX_PAGES) -> "Deduplicator":
        """Return one that remembers ``state``, which another one's `to_bytes` returned.

        Raises:
            ConfigError: these are no such bytes, or they are damaged.

        """
        refusal = "this is not what Deduplicator.to_bytes gave, or it is damaged: restore it, or begin with a new one"
        if not isinstance(state, _BYTES_LIKE):
            raise ConfigError(f"{refusal} state={type(state).__name__}")
        state = bytes(state)
        body = memoryview(state)[4:]
        if state[:4] != zlib.crc32(body).to_bytes(4, "big"):
            raise ConfigError(f"{refusal} bytes={len(state)}")
        try:
            known = msgspec.msgpack.decode(body, type=_State)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ConfigError(f"{refusal} bytes={len(state)}: {error}") from error
        if known.version != _VERSION:
            raise ConfigError(f"a newer aiorecover wrote this state: update this one version={known.version}")
        return cls.from_pages(dict(known.pages), max_pages=max_pages)

    @classmethod
    def from_pages(cls, pages: Mapping[str, bytes], *, max_pages: int = MAX_PAGES) -> "Deduplicator":
        """Return one that remembers ``pages``, as `take_changes` returned them; the last ones where not all fit.

        Raises:
            ConfigError: ``pages`` is no mapping, or holds something that is no page.

        """
        one = cls(max_pages=max_pages)
        for page, bits in _pages(pages):
            one._begin(page)[: len(bits)] = bits
            one._in_table.add(page)
        return one

    def _begin(self, page: Page) -> bytearray:
        if len(self._pages) >= self.max_pages:
            self._forget(next(iter(self._pages)))
        bits = self._pages[page] = bytearray(_BYTES)
        return bits

    def _forget(self, page: Page) -> None:
        del self._pages[page]
        self._changed.pop(page, None)
        if page in self._in_table:
            self._in_table.remove(page)
            self._changed[page] = None
        self.forgotten += 1


def _most(pages: object) -> int:
    if isinstance(pages, int) and not isinstance(pages, bool) and pages >= LEAST_PAGES:
        return pages
    raise ConfigError(f"max_pages must be a whole number of {LEAST_PAGES} or more max_pages={pages!r:.200}")


def _place(record_id: object, topic: object = None) -> tuple[Page, int, int]:
    known = parse_record_id(record_id) if isinstance(record_id, str) else None
    if known is None:
        message = 'a record id is "producer id/epoch/sequence", as record_id_of(record.headers) gives it'
        raise ConfigError(f"{message} record_id={record_id!r:.200}")
    if topic is not None and not (isinstance(topic, str) and _TOPIC.fullmatch(topic)):
        raise ConfigError(f"topic must be the name of a topic, as record.topic gives it topic={topic!r:.200}")
    producer_id, epoch, sequence = known
    number, place = divmod(sequence, PAGE)
    return (producer_id, epoch, number, topic or ""), place >> 3, 1 << (place & 7)


def _name(page: Page) -> str:
    return f"{page[0]}/{page[1]}/{page[2]}" + (f"/{page[3]}" if page[3] else "")


def _pages(pages: object) -> Iterator[tuple[Page, bytes]]:
    if not isinstance(pages, Mapping):
        message = "pages must be a mapping of names to bytes, as take_changes gave them"
        raise ConfigError(f"{message} pages={type(pages).__name__}")
    for name, stored in pages.items():
        page = _page(name)
        bits = bytes(stored) if isinstance(stored, _BYTES_LIKE) else None
        if page is None or bits is None or len(bits) > _BYTES:
            raise ConfigError(f"this is no page of a Deduplicator page={name!r:.100} bits={stored!r:.100}")
        yield page, bits


def _page(name: object) -> Page | None:
    """Return the page that a name stands for; None: it is no name of one, or not its only spelling."""
    if not isinstance(name, str):
        return None
    producer_id, _, rest = name.partition("/")
    epoch, _, rest = rest.partition("/")
    number, apart, topic = rest.partition("/")
    if apart and not _TOPIC.fullmatch(topic):
        return None
    if not number.isdecimal() or len(number) > _DIGITS_MOST:
        return None
    known = parse_record_id(f"{producer_id}/{epoch}/{int(number) * PAGE + 1}")  # an id that is in the page
    page = None if known is None else (producer_id, known[1], int(number), topic)
    return page if page is not None and _name(page) == name else None


def _stored(bits: bytearray) -> bytes:
    """Return the bits, the lowest first, without the zero bytes at the end."""
    return bytes(bits.rstrip(b"\0"))
