"""Find batches that have no object in their segments when their turn comes, and check them (R14)."""

import struct
from typing import TYPE_CHECKING, NamedTuple

from aiorecover.ring import format as layout
from aiorecover.ring.damage import keep_aside
from aiorecover.ring.format import OWN_HEAD_SIZE, RECORDS_AT, BatchState
from aiorecover.ring.lane import LOADED, Lane
from aiorecover.ring.records import IDENTITY_AT, Buffer, timestamp_delta, walk
from aiorecover.ring.recovery import Found, Verdict, find_batches, in_question, intact
from aiorecover.ring.segments import Batch, Segment

if TYPE_CHECKING:
    from aiorecover.ring.ring import Ring

IDENTITY_MS = 12 * 3600 * 1000  # half of the day for which brokers remember a producer by default

_IDENTITY = struct.Struct(">qhii")  # an identity, and how many records were sent under it


class Ahead(NamedTuple):
    """The result of `read_ahead`: batches that wait, and how far each segment was read."""

    batches: list[tuple[Segment, Found]]
    walked: list[tuple[Segment, int]]


def read_ahead(ring: "Ring", lane: Lane) -> Ahead:
    """Find the next batches of a lane that wait without objects; blocks where their segment is cold.

    Raises:
        WalIOError: the disk failed.

    """
    ahead = Ahead([], [])
    for segment in list(lane.later):
        upto = segment.filled
        read, start = segment.read, segment.unloaded
        for found in find_batches(
            read, segment.salt, upto, trusted=segment.trusted, start=start, notes=segment.unloaded_notes
        ):
            if found.verdict in (Verdict.DONE, Verdict.EMPTY) or not found.head.epoch:
                continue
            if segment.earlier and not _still_whole(ring, segment, found):
                most = max(found.count, found.head.count, *(point.count for point in found.head.points))
                found = found._replace(verdict=Verdict.DAMAGED, count=most)  # noqa: PLW2901 - the same one, judged again
                keep_aside(ring, segment, found)
            ahead.batches.append((segment, found))
            if len(ahead.batches) + lane.loaded >= LOADED:
                return ahead
        ahead.walked.append((segment, upto))
    return ahead


def _still_whole(ring: "Ring", segment: Segment, found: Found) -> bool:
    """Whether a batch of an earlier life, which the opening counted, is what was stored (R14)."""
    if found.verdict is not Verdict.WAITS:
        return False
    return not segment.trusted or intact(segment.read, found, flush_pending=in_question(found, ring.doubt_since))


def take_ahead(ring: "Ring", lane: Lane, ahead: Ahead) -> None:
    """Give the batches that `read_ahead` found their objects; on the loop."""
    for segment, found in ahead.batches:
        segment.unloaded, segment.unloaded_notes = layout.align(found.end), found.notes_after
        batch = ring.away.pop((segment.ordinal, found.at), None) or batch_from(ring, segment, found)
        if found.verdict is Verdict.DAMAGED:
            ring.damaged += found.count
            ring.finish(batch, BatchState.VOID)
            continue
        lane.insert(batch)
        lane.loaded += 1
    for segment, upto in ahead.walked:
        segment.unloaded = max(segment.unloaded, upto)
    while lane.later and lane.later[0].unloaded >= lane.later[0].filled:
        lane.later.popleft()


def batch_from(ring: "Ring", segment: Segment, found: Found) -> Batch:
    """Return the object of a batch that was found in a segment."""
    head = found.head
    batch = Batch(segment.lane, segment, found.at, head.first, head.epoch, head.base)
    batch.state = BatchState.SEALED if head.state in (BatchState.OPEN, None) else head.state
    batch.count, batch.span = found.count, head.span
    batch.end, batch.notes = found.end, found.notes
    batch.notes_from = batch.synced_notes = found.notes_from
    batch.parent = head.parent
    batch.transaction, batch.accepted_at, batch.sent_at = head.transaction, head.accepted_at, head.sent_at
    if not segment.trusted or (found.covered and not (segment.earlier and ring.undurable)):
        batch.covered = found.end
    if found.verdict is Verdict.DAMAGED or (segment.trusted and head.state is not BatchState.OPEN):
        batch.latest = head.latest
    else:
        batch.latest = head.base + latest_delta(segment.read(found.at + RECORDS_AT, found.end))
    if head.state is BatchState.SENT and identity_counts(ring, found):
        place = found.at + OWN_HEAD_SIZE + IDENTITY_AT
        *identity, count = _IDENTITY.unpack(bytes(segment.read(place, place + _IDENTITY.size)))
        if count == found.count:  # else the identity is damaged
            batch.identity = identity[0], identity[1], identity[2]
    return batch


def identity_counts(ring: "Ring", found: Found) -> bool:
    """Whether the broker still knows what a SENT batch was sent under (R2)."""
    if found.head.state_epoch < ring.checkpoint.first_epoch_of_boot:  # or it was sent from another file, a copy
        return False
    return ring.files.boot_ms() - found.head.sent_at < IDENTITY_MS


def latest_delta(data: Buffer) -> int:
    """Return the highest timestamp of records, in ms since the base timestamp of their batch; 0 at the least."""
    return max((timestamp_delta(data, span) for span in walk(data)), default=0)
