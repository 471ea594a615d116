"""Damage: batches that cannot be read any more are named by their ids, kept in ``damaged/``, and counted (R14)."""

import logging
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from aiorecover.errors import WalError
from aiorecover.ring.files import Files
from aiorecover.ring.format import RECORDS_AT, SEGMENT_HEAD_SIZE
from aiorecover.ring.records import DamagedRecordError, id_of
from aiorecover.ring.recovery import Found, Verdict, find_batches

if TYPE_CHECKING:
    from aiorecover.ring.ring import Ring
    from aiorecover.ring.segments import Segment

FOLDER = "damaged"
KEPT_FILES = 256  # of `KEPT_BYTES` each: more of them mean a broken disk
KEPT_BYTES = 1 << 20

_SALT = struct.Struct("<Q")
_SALT_IN_HEAD = 32

_log = logging.getLogger("aiorecover")


def keep_aside(ring: "Ring", segment: "Segment", found: Found) -> int:
    """Copy a damaged batch to ``damaged/`` and name it; blocks. Return how many records are lost, as far as known.

    Where the older sync point of a batch holds, only the records after it are lost. A batch is named once, as long as
    its copy is there.
    """
    head = found.head
    end = found.end if found.end > found.at + RECORDS_AT else min(segment.size, found.at + KEPT_BYTES)
    lost = max(found.count, head.count)
    if found.verdict is Verdict.WAITS:
        end, lost = max(point.end for point in head.points), found.lost
    if head.epoch:
        ring.damages.append((head.epoch, head.first, head.first + max(head.span, lost - 1, 0)))
    name = f"{segment.ordinal:016x}-{found.at}"
    if _is_kept(ring, name):
        return 0
    path = _keep(ring, name, bytes(segment.read(found.at, min(end, segment.size))))
    last = head.first + head.span if head.span else "unknown"
    _log.error(
        "batch_damaged a batch cannot be read any more: check the disk lane=%s producer=%s epoch=%d first=%d last=%s "
        "records=%s kept=%s",
        segment.lane,
        ring.producer_id,
        head.epoch,
        head.first,
        last,
        lost or "unknown",
        path,
    )
    return lost


def keep_segment_aside(ring: "Ring", place: int, size: int, data: bytes) -> None:
    """Keep the batches of a segment whose head is damaged, as far as flushes covered them; blocks.

    Their topic is unknown then. After a power cut most such heads belong to segments that no flush had covered: nothing
    was in them. The salt is taken from the head or, where that is what was damaged, from the first batch.
    """
    if not any(data):
        return
    files = ring.files

    def read(start: int, end: int) -> bytes:
        return files.read(ring.fd, place + start, end - start)

    salts = {_SALT.unpack_from(data, _SALT_IN_HEAD)[0], _SALT.unpack(read(SEGMENT_HEAD_SIZE, SEGMENT_HEAD_SIZE + 8))[0]}
    whole = [
        found
        for salt in salts
        for found in find_batches(read, salt, size, trusted=False)
        if found.verdict is Verdict.WAITS
    ]
    for found in whole:
        name = f"segment-{place:x}-{found.head.salt:016x}-{found.at}"
        if _is_kept(ring, name):
            continue
        path = _keep(ring, name, read(found.at, found.end))
        try:
            last: object = "/".join(map(str, id_of(read(found.at, found.end), found.end - found.at)))
        except DamagedRecordError:
            last = "unknown"
        ring.damages.append((found.head.epoch, found.head.first, found.head.first + max(found.head.span, 0)))
        _log.error(
            "segment_damaged the head of a segment cannot be read, so the topic is unknown: check the disk "
            "first=%d last=%s records=%d kept=%s",
            found.head.first,
            last,
            found.count,
            path,
        )
        ring.damaged += found.count


def kept_aside(path: Path, files: Files) -> int:
    """Return how many damaged batches the directory ``path`` keeps: what is removed by hand counts no more."""
    folder = path / FOLDER
    return 0 if files.status(folder) is None else len(files.names(folder))


def _is_kept(ring: "Ring", name: str) -> bool:
    return ring.files.status(ring.directory.path / FOLDER / name) is not None


def _keep(ring: "Ring", name: str, data: bytes) -> object:
    folder = ring.directory.path / FOLDER
    try:
        ring.files.make_directory(folder)
        if len(ring.files.names(folder)) >= KEPT_FILES:
            return f"nothing: {folder} is full"
        ring.files.replace_file(folder / name, data[:KEPT_BYTES])
    except WalError as error:  # the log names the batch all the same
        return f"nothing: {error}"
    return folder / name
