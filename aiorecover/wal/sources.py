"""How far the streams were read that records are made from. Pure.

A record may say which item of a stream it was made from: the stream's name, its part, the item's number. Of each part
the number behind the highest one is remembered: there somebody goes on reading who has died. It stands in the
checkpoint, captured behind the position up to which everything was stored then; of what was stored behind that the
frames themselves tell (`view`), before the next opening is over. So it is never behind what is in the ring, whatever is
recycled, except where a power cut took some: there it goes back to the first of these.
"""

from aiorecover.errors import EncodeError

Stored = dict[str, dict[int, int]]  # of each stream and part the next number

ROOM = 40_000  # bytes of a checkpoint: some 2,800 parts of one stream; ages and the rest take less than 20,000
PART_BYTES = 14  # at most: two numbers of MessagePack
STREAM_BYTES = 8  # beside its name: two lengths


class Sources:
    """What is remembered of all streams of a directory."""

    def __init__(self, stored: Stored) -> None:
        """Begin with what a checkpoint says."""
        self._streams: Stored = {}
        self._bytes = 0
        for stream, parts in stored.items():
            for part, following in parts.items():
                self._remember(stream, part, following)

    def check(self, stream: str, part: int) -> None:
        """Whether there is room to remember this part.

        Raises:
            EncodeError: there is none.

        """
        parts = self._streams.get(stream)
        if parts is not None and part in parts:
            return
        if self._bytes + _bytes_of(stream, known=parts is not None) > ROOM:
            message = "a producer remembers no more source partitions than these: spread them over several producers"
            raise EncodeError(f"{message} topics={len(self._streams)} partitions={len(self)}")

    def note(self, stream: str, part: int, number: int) -> None:
        """Something was made from this item, and stored; numbers may come in any order."""
        parts = self._streams.get(stream)
        if parts is None or parts.get(part, -1) <= number:
            self._remember(stream, part, number + 1)

    def captured(self) -> Stored:
        """As it is now, for a checkpoint."""
        return {stream: dict(parts) for stream, parts in self._streams.items()}

    def __len__(self) -> int:
        """How many parts."""
        return sum(map(len, self._streams.values()))

    def _remember(self, stream: str, part: int, following: int) -> None:
        known = stream in self._streams
        parts = self._streams.setdefault(stream, {})
        if part not in parts:
            self._bytes += _bytes_of(stream, known=known)
        parts[part] = following


def later(one: Stored | None, other: Stored | None) -> Stored | None:
    """What both know together; None: neither remembers anything."""
    if one is None or other is None:
        return one if other is None else other
    both = Sources(one)
    for stream, parts in other.items():
        for part, following in parts.items():
            both.note(stream, part, following - 1)
    return both.captured()


def _bytes_of(stream: str, *, known: bool) -> int:
    return PART_BYTES + (0 if known else STREAM_BYTES + len(stream.encode()))
