"""The opening of a ring: read the heads of regions and segments, and make the new epoch durable (R1).

Records can be accepted then; `backlog` reads the rest. It blocks, and runs in a thread.
"""

import base64
from collections.abc import Callable, Iterator
from functools import partial

from aiorecover.ring import format as layout
from aiorecover.ring.checkpoint import Checkpoint
from aiorecover.ring.damage import keep_segment_aside
from aiorecover.ring.directory import RING
from aiorecover.ring.format import SEGMENT_HEAD_SIZE, SegmentHead
from aiorecover.ring.inspect import class_of, look, refuse_foreign
from aiorecover.ring.ring import Ring
from aiorecover.ring.segments import Region, Segment


def new_producer_id(random: Callable[[int], bytes]) -> str:
    """Return 13 characters of a-z and 2-7: 64 random bits."""
    return base64.b32encode(random(8)).decode().rstrip("=").lower()


def open_ring(ring: Ring, *, name: str | None = None, guarantee: str = "at_least_once") -> list[Segment]:
    """Read the heads and begin a new epoch; blocks. Return the segments of earlier lives.

    Raises:
        WalError: the directory, the volume or the disk does not allow it.

    """
    directory, files = ring.directory, ring.files
    stored = directory.checkpoint
    emptied = stored is not None and stored.guarantee != guarantee and not look(directory.path, files).records
    directory.check_destination(name, None if emptied else guarantee, None)
    boot_id = directory.boot_id
    ring.boot_id = bytes.fromhex(boot_id.replace("-", ""))[:16].ljust(16, b"\0") if boot_id else files.random(16)
    if stored is None:  # it is durable before anything is stored here (R1)
        refuse_foreign(partial(files.read, ring.fd), files.size(ring.fd), ring.geometry, directory.path / RING)
    segments: list[Segment] = []
    for base in range(0, files.size(ring.fd), ring.geometry.region):
        segments += _read_region(ring, base)
    epochs = [segment.ordinal >> 32 for segment in segments]
    ring.producer_id = ring.producer_id or (stored.producer_id if stored else "") or new_producer_id(files.random)
    ring.epoch = 1 + max([stored.epoch if stored else 0, *epochs])
    same_boot = stored is not None and bool(boot_id) and stored.boot_id == boot_id
    if stored is not None:
        ring.topics.update(stored.topics)
        for key, newest in stored.sources.items():
            topic, _, partition = key.rpartition(":")
            ring.sources[topic, int(partition)] = newest
    ring.start_ordinals()
    ring.check_volume()
    same_ring = stored is not None and same_boot and tuple(stored.ring) == tuple(files.identity(ring.fd))
    checkpoint = Checkpoint(
        producer_id=ring.producer_id,
        epoch=ring.epoch,
        boot_id=boot_id,
        first_epoch_of_boot=stored.first_epoch_of_boot if stored is not None and same_ring else ring.epoch,
        ring=files.identity(ring.fd),
        guarantee=guarantee,
        cluster_id=stored.cluster_id if stored else None,
        name=name,
        topics=dict(ring.topics),
        sources=dict(stored.sources) if stored else {},
        transaction=stored.transaction if stored else 0,
    )
    directory.save(checkpoint)
    ring.recovering = bool(segments)
    return segments


def _read_region(ring: Ring, base: int) -> Iterator[Segment]:
    files, geometry = ring.files, ring.geometry
    size = class_of(partial(files.read, ring.fd), base, geometry) or geometry.large
    region_head = layout.pack_region(size, base)
    if files.read(ring.fd, base, layout.REGION_HEAD_SIZE) != region_head:  # it was never durable, or is damaged
        files.write(ring.fd, base, region_head)
    if files.size(ring.fd) < base + geometry.region:  # the process died as the file grew
        files.set_size(ring.fd, base + geometry.region)
    region = Region(files, ring.fd, base, size, geometry.region)
    ring.pool.regions.append(region)
    for at in geometry.places(size):
        files.will_need(ring.fd, base + at, SEGMENT_HEAD_SIZE)
    for at in geometry.places(size):
        data = files.read(ring.fd, base + at, SEGMENT_HEAD_SIZE)
        head = layout.read_segment(data, base + at, size)
        if head is None:
            keep_segment_aside(ring, base + at, size, data)
            ring.pool.add_hole(base + at, size)
        else:
            yield _segment(ring, region, at, head)


def _segment(ring: Ring, region: Region, at: int, head: SegmentHead) -> Segment:
    ring.producer_id = ring.producer_id or head.producer_id
    segment = Segment(region, at, head, ring.lane(head.topic, head.partition))
    segment.earlier = segment.closed = segment.cooled = True
    segment.trusted = head.boot_id == ring.boot_id
    segment.filled = segment.size
    region.used += 1
    segment.lane.segments += 1
    segment.lane.held += head.size
    segment.lane.earlier += 1
    ring.used += head.size
    return segment
