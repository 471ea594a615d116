"""The checkpoint: what a directory remembers beside its ring, in a file that is replaced as a whole.

    file    magic 8 · format version u16 · zero u16 · length u32 · zero u64 · CRC-32 u32 · body (msgpack)

The CRC covers what is before it and the body. The head is laid out as that of version 0.1, so that each of the two
refuses the other's file with a sentence. Everything here is pure: `aiorecover.ring.directory` reads and writes it.
"""

import struct
import zlib
from pathlib import Path

import msgspec

from aiorecover.errors import WalCorruptError, WalFormatError

Sources = dict[tuple[str, int], tuple[int, int, int]]
"""For each source, a (topic, partition): the offset, and epoch and sequence of the newest record made from it."""

MAGIC = b"\x89AIOCHK\n"
FORMAT_VERSION = 2
FIRST_CORE_VERSION = 1  # of aiorecover 0.1
_HEAD = struct.Struct("<8sHHIQ")
_CRC = struct.Struct("<I")
_BODY_AT = _HEAD.size + _CRC.size


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state of a directory.

    Attributes:
        producer_id: 13 characters of a-z and 2-7, made once for a directory: the first part of its record ids.
        epoch: of the opening that wrote this; 1 for the first one.
        boot_id: of the machine when this was written; empty where the system does not say.
        first_epoch_of_boot: the first epoch of the openings in that boot.
        ring: device and inode of the file `ring`: a copied or restored file has others.
        cluster_id: of the Kafka cluster that the records belong to; None: not known yet.
        name: the option ``name``; None: never given.
        guarantee: the option ``guarantee`` that the records were accepted with.
        topics: how many partitions each topic is known to have.
        sources: the newest durable position of each source: offset, epoch and sequence of the record made from it.
        transaction: the highest number of a settled batch that was sent in a transaction; 0: none.

    """

    producer_id: str
    epoch: int
    boot_id: str
    first_epoch_of_boot: int
    ring: tuple[int, int]
    guarantee: str
    cluster_id: str | None = None
    name: str | None = None
    topics: dict[str, int] = {}
    sources: dict[str, tuple[int, int, int]] = {}
    transaction: int = 0
    version: int = FORMAT_VERSION


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode


def dump(checkpoint: Checkpoint) -> bytes:
    """Return the file's content."""
    body = _encode(checkpoint)
    head = _HEAD.pack(MAGIC, checkpoint.version, 0, len(body), 0)
    return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


def load(data: bytes, path: Path | str = "checkpoint") -> Checkpoint:
    """Return the checkpoint in a file's content; ``path`` is for the messages.

    Raises:
        WalFormatError: another version of aiorecover wrote it.
        WalCorruptError: it is damaged.

    """
    if data[:8] != MAGIC or len(data) < _BODY_AT:
        raise _damaged(path)
    _, version, _, length, _ = _HEAD.unpack_from(data)
    if version == FIRST_CORE_VERSION:  # two copies of a fixed size: not checked any further
        message = "aiorecover 0.1 wrote this directory: drain it with aiorecover 0.1, then use an empty one"
        raise WalFormatError(f"{message} path={path}")
    body = data[_BODY_AT:]
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if len(body) != length or crc != zlib.crc32(body, zlib.crc32(data[: _HEAD.size])):
        raise _damaged(path)
    if version != FORMAT_VERSION:
        message = "a newer aiorecover wrote the checkpoint: use that version"
        raise WalFormatError(f"{message} path={path} format={version} supported={FORMAT_VERSION}")
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path | str) -> WalCorruptError:
    message = (
        "the checkpoint is damaged: check the disk, then remove this file, and the next start takes producer id and "
        "epoch from the ring; what the records belong to (cluster, name, guarantee) is not checked then"
    )
    return WalCorruptError(f"{message} path={path}")
