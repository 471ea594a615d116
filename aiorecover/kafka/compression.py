"""A batch's bytes with its records compressed; in a thread, since some codecs take 30 ms for a megabyte."""

from collections.abc import Callable
from typing import Any, Final

from aiokafka import codec
from aiokafka.record.util import calc_crc32c

from aiorecover.ring.format import OWN_HEAD_SIZE
from aiorecover.ring.records import ATTRIBUTES_AT, BATCH_HEAD_SIZE, CRC_AT, LEADER_EPOCH_AT, LENGTH_AT
from aiorecover.ring.segments import Batch

_CODECS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (1, codec.gzip_encode),
    "snappy": (2, codec.snappy_encode),
    "lz4": (3, codec.lz4_encode),
    "zstd": (4, codec.zstd_encode),
}


def compressed_payload(batch: Batch, compression: str, attributes: int = 0) -> list[Any]:
    """Return the bytes of a batch that has its identity, in parts, its records compressed.

    The ring keeps them as they are: a repeat is compressed anew, and its identity and count are the same.
    """
    number, encode = _CODECS[compression]
    attributes |= number
    data = bytes(batch.segment.read(batch.at + OWN_HEAD_SIZE, batch.end))
    records = bytes(encode(data[BATCH_HEAD_SIZE:]))
    length = len(records) + BATCH_HEAD_SIZE - LEADER_EPOCH_AT
    covered = attributes.to_bytes(2, "big") + data[ATTRIBUTES_AT + 2 : BATCH_HEAD_SIZE] + records
    head = data[:LENGTH_AT] + length.to_bytes(4, "big") + data[LEADER_EPOCH_AT:CRC_AT]
    return [head, calc_crc32c(covered).to_bytes(4, "big"), covered]
