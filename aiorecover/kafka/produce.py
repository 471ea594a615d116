"""Kafka's Produce request, version 7, with its bytes joined once, and its answer, read without a schema."""

import struct
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple

from aiokafka import codec
from aiokafka.protocol.api import Response
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.record.util import calc_crc32c

from aiorecover.ring.format import OWN_HEAD_SIZE
from aiorecover.ring.records import ATTRIBUTES_AT, BATCH_HEAD_SIZE, CRC_AT, LEADER_EPOCH_AT, LENGTH_AT
from aiorecover.ring.segments import Batch

API_KEY, API_VERSION = 0, 7
ACKS_ALL = -1

_START = struct.Struct(">hii")  # acks, timeout in ms, number of topics
_PARTITION = struct.Struct(">ii")  # partition, bytes of its batch
_ANSWER = struct.Struct(">ihqqq")  # partition, error code, base offset, append time, log start offset
_CODECS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {  # with the number in a batch's attributes
    "gzip": (1, codec.gzip_encode),
    "snappy": (2, codec.snappy_encode),
    "lz4": (3, codec.lz4_encode),
    "zstd": (4, codec.zstd_encode),
}
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")


class Answer(NamedTuple):
    """The answer for one partition; ``offset`` is -1 where the broker does not know it."""

    topic: str
    partition: int
    code: int
    offset: int


class Answers(NamedTuple):
    """The answer to a request; ``throttle_ms``: the pause that the broker asks for."""

    partitions: list[Answer]
    throttle_ms: int


class _Response(Response):
    API_KEY: ClassVar[int] = API_KEY
    API_VERSION: ClassVar[int] = API_VERSION

    @classmethod
    def decode(cls, data: Any) -> Any:
        """Read an answer."""
        data, at, answers = data.read(), 4, []
        for _ in range(_I32.unpack_from(data)[0]):
            (size,) = _I16.unpack_from(data, at)
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (number,) = _I32.unpack_from(data, at)
            at += 4
            for partition, code, offset, _, _ in _ANSWER.iter_unpack(data[at : at + _ANSWER.size * number]):
                answers.append(Answer(topic, partition, code, offset))
            at += _ANSWER.size * number
        return Answers(answers, _I32.unpack_from(data, at)[0])


class _Headed:
    """A request with its header; ``size + headed`` joins all of it."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __radd__(self, size: bytes) -> bytes:
        return b"".join((size, *self._parts))


class _Body(ProduceRequest_v7):
    """aiokafka sends ``size + (header + body)``, which would copy a megabyte at each plus; this is joined at the last.

    Attributes:
        parts: bytes-like.

    """

    RESPONSE_TYPE = _Response  # type: ignore[assignment]  # it reads the same bytes

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def encode(self) -> Any:
        return self

    def __radd__(self, header: bytes) -> _Headed:
        return _Headed([header, *self.parts])

    def __repr__(self) -> str:
        return "<Produce>"


class ProduceRequest:
    """A request over some batches, at most one a partition; `Client.send` takes it."""

    required_acks = ACKS_ALL

    def __init__(
        self, transactional_id: str | None, timeout_ms: int, payloads: Iterable[tuple[str, int, list[Any]]]
    ) -> None:
        """``payloads``: topic, partition and the parts of its batch's bytes; ``timeout_ms``: how long replicas have."""
        topics: dict[str, list[tuple[int, list[Any]]]] = {}
        for topic, partition, batch in payloads:
            topics.setdefault(topic, []).append((partition, batch))
        name = b"" if transactional_id is None else transactional_id.encode()
        self._parts: list[Any] = [_I16.pack(-1 if transactional_id is None else len(name)), name]
        self._parts.append(_START.pack(ACKS_ALL, timeout_ms, len(topics)))
        for topic, batches in topics.items():
            encoded = topic.encode()
            self._parts += (_I16.pack(len(encoded)), encoded, _I32.pack(len(batches)))
            for partition, batch in batches:
                self._parts += (_PARTITION.pack(partition, sum(map(len, batch))), *batch)

    def forget(self) -> None:
        """Let go of the batches: parts are views of the mapping, which can be closed only without them."""
        self._parts.clear()

    def prepare(self, versions: Any) -> _Body:
        """Return what aiokafka sends; every broker since Kafka 2.0 takes this version."""
        del versions
        return _Body(self._parts)


def payload(batch: Batch, compression: str | None = None, attributes: int = 0) -> list[Any]:
    """Return the bytes of a batch that has its identity, in parts; its checksum is made here.

    Without ``compression`` they are views of the mapping where the batch is hot: the segment stays as long as the batch
    is not done. Compressing belongs in a thread: some codecs take 30 ms for a megabyte. The ring keeps the records as
    they are; a repeat is compressed anew, under the same identity and count.
    """
    data = batch.segment.read(batch.at + OWN_HEAD_SIZE, batch.end)
    head, covered = data[:CRC_AT], data[ATTRIBUTES_AT:]
    if compression is not None:
        number, encode = _CODECS[compression]
        attributes |= number
        records = bytes(encode(bytes(data[BATCH_HEAD_SIZE:])))
        length = len(records) + BATCH_HEAD_SIZE - LEADER_EPOCH_AT
        head = bytes(head[:LENGTH_AT]) + length.to_bytes(4, "big") + bytes(head[LEADER_EPOCH_AT:])
        covered = bytes(data[ATTRIBUTES_AT:BATCH_HEAD_SIZE]) + records
    if attributes:
        covered = attributes.to_bytes(2, "big") + covered[2:]
    return [head, calc_crc32c(covered).to_bytes(4, "big"), covered]
