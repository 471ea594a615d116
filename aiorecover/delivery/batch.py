"""A Kafka batch that carries its lane's identity, and remembers the frames it was made of.

This, `delivery.session`, `delivery.requests` and `delivery.hard_close` are the only modules that use private parts of
aiokafka 0.14 (pinned; ``tests/test_aiokafka_private.py`` fails when they change).
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from aiorecover.record import Header
from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot

CODECS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}  # Kafka's numbers of the compression types

ENTRY_WORDS = 4096  # of a batch's entry in the journal: one for each record, and
GROUP_WORDS = 4  # for each slot that records come from. Room is kept for
GROUPS_MOST = 3  # of them, as a move may spread the records of a slot over so many: copies are half as large again
RESERVED_WORDS = GROUPS_MOST * GROUP_WORDS

# Record batch, magic 2: crc at 17, then attributes; producer id, epoch and base sequence at 43; records from 61 on.
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_IDENTITY_AT = 43
_IDENTITY = struct.Struct(">qhi")
_RECORDS_AT = 61


class Held(NamedTuple):
    """A record as it stands in a batch; with ``position`` and ``nonce`` it was accepted. The last header is its id."""

    position: int
    nonce: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def bytes(self) -> int:
        """About so many of the batch's are its own."""
        headers = sum(len(name) + len(content or b"") for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class LaneBatch(BatchBuilder):
    """Records of one lane, in order.

    ``add`` is the raw builder's append ``(number, timestamp_ms, key, value, headers)``, without aiokafka's wrapper:
    measured 170 ns a record less. It returns None when the batch is full. ``places`` is the list of the last group in
    ``frames``: pairs of a slot and the places of the batch's frames in it. ``most``: so many records it may hold, or
    its entry in the journal would be too long. ``entered``: the identity under which it stands there. ``found_at``: the
    offset at which its records were found in Kafka: it holds none of their bytes, and is not sent.
    """

    settling = False  # frames of it are settled, all of it as soon as nothing comes in between; of the class, likewise
    trouble = ""  # what the last attempt that failed has met; of the class, as most batches never have any

    def __init__(self, size: int, codec: int, *, transactional: bool = False) -> None:
        """Start empty; ``size`` in bytes before compression. ``transactional``: it is sent in transactions alone."""
        super().__init__(size, codec, is_transactional=transactional)  # type: ignore[no-untyped-call]
        self.transactional = transactional
        self.add = self._builder.append
        self.count = 0
        self.slot: Slot | None = None
        self.places: list[int] = []
        self.frames: list[tuple[Slot, list[int]]] = []
        self.most = ENTRY_WORDS - RESERVED_WORDS
        self.identity: tuple[int, int, int] | None = None
        self.entered: tuple[int, int, int] | None = None
        self.found_at: int | None = None
        self.bytes = 0
        self.attempts = 0
        self.earlier = 0  # attempts of the batches that this one is a part of
        self.first_ms = 0  # when its records were first sent, milliseconds since 1970
        self.begun_as: tuple[int, int, int] | None = None  # the identity under which it was sent last, and
        self.begun_ms = 0  # when that began, milliseconds since the machine's boot: `begin_attempt`
        self.requests = 0  # of the present attempt: more than one if aiokafka repeated it by itself
        self._possibly = False
        self._unsure = False  # an attempt under `begun_as` may be in the log
        self.doubtful = False  # so it was of a batch that this one is a part of, or an earlier process may have sent it
        self.rest: LaneBatch | None = None  # of the refused batch: holds what is at fault if this one does not
        self.at_fault = False  # holds a record at fault, as far as the rest of its batch tells
        self.probes = False  # it may be larger than its lane's limit: it is tried whether the topic takes that
        self.sound = False  # its timestamps were right when its records were accepted, though Kafka refuses them by now
        self.silences = 0  # requests with it that got no answer in time

    def start_group(self, slot: Slot) -> list[int]:
        """Frames from ``slot`` follow."""
        self.slot = slot
        self.places = []
        self.frames.append((slot, self.places))
        self.most -= RESERVED_WORDS
        return self.places

    @property
    def is_empty(self) -> bool:
        """Nothing was added to it, whatever ``count`` says."""
        return self.size() <= _RECORDS_AT  # type: ignore[no-any-return, no-untyped-call]

    def take_stock(self, slot: Slot, place: int) -> bool:
        """Have ``count`` and ``frames`` say what its bytes hold; whether the last frame is at ``place`` of ``slot``.

        Between the bytes of a record and the note of it a signal may have come. Nothing can be added afterwards.
        """
        held = MemoryRecords(bytes(super()._build())).next_batch()  # type: ignore[no-untyped-call]
        self.count = len(list(held or ()))
        if sum(len(places) for _, places in self.frames) < self.count:
            if not self.frames or self.frames[-1][0] is not slot:
                self.start_group(slot)
            self.slot, self.places = self.frames[-1]
            self.places.append(place)
        return self.slot is slot and self.places[-1:] == [place]

    def go_along(self) -> bool:
        """It stands where its records were moved to, from now on; False where nothing was moved.

        Else each moved slot, and where all its records went, would be kept for as long as the batch waits.
        """
        if not any(slot.moved and slot.copies for slot, _ in self.frames):
            return False
        frames: list[tuple[Slot, list[int]]] = []
        for slot, places in self.frames:
            for place in places:
                home, there = slot.counts_at(place)
                if not frames or frames[-1][0] is not home:
                    frames.append((home, []))
                frames[-1][1].append(there)
        self.most -= RESERVED_WORDS * max(0, len(frames) - len(self.frames))  # it may be full, and then stays so
        self.frames = frames  # who goes through the old ones goes on with those
        self.slot, self.places = frames[-1]
        return True

    def finish(self) -> None:
        """Nothing more is added; ``bytes`` is known. Once more does no harm."""
        self.bytes = self.size()  # type: ignore[no-untyped-call]
        self.close()  # type: ignore[no-untyped-call]
        self.__dict__.pop("add", None)

    def records(self) -> Iterator[Held]:
        """What it was filled with, in order, from its own bytes: whole, whatever has become of the frames since.

        Nothing is added any more. A batch that was found in Kafka holds none.
        """
        if self.found_at is not None:
            return
        record: Any
        for record in MemoryRecords(bytes(super()._build())).next_batch() or ():  # type: ignore[no-untyped-call]
            owner, epoch, sequence = record.headers[-1][1].decode().rsplit("/", 2)
            position, nonce = fmt.position(int(epoch), int(sequence)), fmt.nonce_of(fmt.producer_id_of(owner) or 0)
            yield Held(position, nonce, record.timestamp, record.key, record.value, record.headers)

    def begin_attempt(self, now_ms: int, boot_ms: int) -> None:
        """It is handed to a session, once more; in milliseconds since 1970, and since the machine's boot."""
        self.attempts += 1
        self.requests = 0
        self.first_ms = self.first_ms or now_ms
        if self.begun_as != self.identity:
            self.begun_as, self._unsure = self.identity, False
        if not self._unsure:  # else Kafka counts from the one that may have come through
            self.begun_ms = boot_ms

    def identify(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Set the identity under which the broker knows this batch, in the built bytes too."""
        self.identity = (producer_id, epoch, base_sequence)
        if self._buffer is None:
            self._builder.set_producer_state(producer_id, epoch, base_sequence)
            return
        _IDENTITY.pack_into(self._buffer, _IDENTITY_AT, producer_id, epoch, base_sequence)
        crc = calc_crc32c(bytes(self._buffer[_ATTRIBUTES_AT:]))
        struct.pack_into(">I", self._buffer, _CRC_AT, crc)

    def forget_attempts(self) -> None:
        """The transaction in which it was sent was aborted: nobody reads anything of it."""
        self.identity = None
        self.possibly = False

    @property
    def possibly(self) -> bool:
        """An attempt of it may be in the log; stays so until it is acknowledged, whatever its identity is by then."""
        return self._possibly

    @possibly.setter
    def possibly(self, may_be: bool) -> None:
        """Note it, of the identity that it has now."""
        self._possibly = may_be
        self._unsure = may_be and (self._unsure or (self.begun_as is not None and self.begun_as == self.identity))

    @property
    def is_fresh(self) -> bool:
        """Nobody can have seen it: it has no identity, and need not stay as it is."""
        return self.identity is None and self.attempts == 0

    @property
    def unsure_since_ms(self) -> int | None:
        """Since when it may be in Kafka under its identity, as `begun_ms`; None: it is not there under that.

        In a transaction nobody asks: one does not take so long, and its identity is not the lane's.
        """
        unsure = self._unsure and self.begun_as == self.identity
        return self.begun_ms if unsure and not self.transactional else None

    @property
    def maybe_there(self) -> bool:
        """Its records may be in Kafka's log: from an attempt of it, or of an earlier batch with the same records."""
        return self.possibly or self.doubtful

    def _build(self) -> Any:
        """The bytes for one more request (asked by aiokafka once for each): from the second on a batch is a repeat.

        `requests` keeps aiokafka from that; should it ever fail to, no sequence is given back for it.
        """
        self.requests += 1
        if self.requests > 1:
            self.possibly = True
        return super()._build()  # type: ignore[no-untyped-call]

    def record_count(self) -> int:
        """How many records it holds (asked by aiokafka)."""
        return self.count

    def _set_producer_state(self, *_: Any) -> None:
        """Ignore the session's identity: the lane's is set already. So a batch can be sent again as it is."""
