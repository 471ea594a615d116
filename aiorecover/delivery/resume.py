"""What the last process had in flight: found at opening, claimed, and built again as the very same batches.

`take_up` runs once, in the keeper's thread, before anybody reads or publishes. It only looks at the frames and claims
them; a batch is built by `rebuild` when its turn comes, so that memory stays bounded.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.identity_life import identity_life_ms
from aiorecover.delivery.in_kafka import Hint
from aiorecover.delivery.journal import (
    MAIN,
    RETRY,
    Doubt,
    Entry,
    decode,
    doubt_of,
    encode,
    lanes_twice,
)
from aiorecover.errors import WalCorruptError, WalError, WalIOError
from aiorecover.record import RECORD_ID_HEADER
from aiorecover.record import decode as decode_record
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import EARLIEST
from aiorecover.wal.directory import Directory
from aiorecover.wal.lanes import BlockFound, Lanes
from aiorecover.wal.lookup import Lookup
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.delivery")

STEP = 128  # records between two turns of the loop: 2-3 ms, a read for each
ENDLESS = 1 << 30  # bytes: the batch was small enough once, whatever max_batch_size says today

Frames = list[tuple[Ring, Slot, list[int]]]


@dataclass(frozen=True, slots=True)
class Resumed:
    """A lane that goes on. ``frames``: of the batch that is in flight; empty when the entry is spent."""

    block: int
    entry: Entry
    frames: Frames


class Left:
    """Entries that stay as they are, as does what they tell of in the rings, until it is known what becomes of them.

    Where another cluster is named than the one that gave their identities, nothing tells so far whether it is there at
    all: the name may be mistyped.
    """

    def __init__(self, directory: Directory) -> None:
        """Keep their blocks from other lanes, and their slots from being freed or moved."""
        self._lanes = directory.lanes
        self._blocks = [found.block for found in self._lanes.found]
        self._slots: list[Slot] = []
        for found in self._lanes.found:
            self._lanes.keep(found.block)
            for entry in _decoded(found):
                self._slots += [slot for _, slot, _ in _standing(directory, entry)]
        for slot in self._slots:
            slot.readers += 1

    def __len__(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def release(self) -> None:
        """The named cluster is there: the records go there as any others."""
        for slot in self._slots:
            slot.readers -= 1
        self._slots.clear()

    async def forget(self) -> int:
        """And it is durably the one: none of these identities is used again; how many they were.

        What cannot be cleared keeps its block: its cluster's number tells.
        """
        count = len(self._blocks)
        while self._blocks:
            block = self._blocks.pop()
            with suppress(WalError):
                self._lanes.clear(block)
                self._lanes.give_back(block)
            await asyncio.sleep(0)
        if count:
            log.warning("lanes begin with a fresh kafka identity: %s lanes=%d", Doubt.MOVED, count)
        return count


@dataclass(slots=True)
class Taken:
    """What an opening has taken up.

    ``doubts``: how many entries were not trusted, and why; one of `LOST`, where nothing tells how many there were.
    ``hints``: the lanes that were in flight then, as far as their entries tell. ``left``: entries of which nothing was
    decided.
    """

    lanes: list[Resumed] = field(default_factory=list)
    doubts: Counter[Doubt] = field(default_factory=Counter)
    hints: list[Hint] = field(default_factory=list)
    left: Left | None = None

    @property
    def claimed(self) -> int:
        """Records of the main ring that are in flight."""
        return sum(resumed.entry.count for resumed in self.lanes if resumed.frames)


def take_up(directory: Directory, now_ms: int, wall_ms: int | None, *, named: str | None = None) -> Taken:
    """Go through the entries of an opened directory: claim the frames that are in flight, set aside what is in doubt.

    An entry in doubt is that for good: its records are delivered under another identity from now on, and a later
    opening must not take it for one that can be trusted. But until they are settled it tells where to look for them, to
    each opening: this process may die before it has. (Not those of another boot, which the next opening would have to
    tell from this boot's.)

    ``now_ms``: time since the machine's boot; ``wall_ms``: since 1970, as records are stamped; None: nothing is read
    back, and a batch is best sent as it was for as long as the broker may remember it. ``named``: the cluster that the
    user names; where the directory remembers another one, all entries are `Left`.

    Raises:
        WalIOError: the file cannot be written.

    """
    destination = directory.checkpoint.destination
    if named not in {None, destination.cluster_id or named}:
        taken = Taken(left=Left(directory))
        _miss(directory, taken)
        return taken
    taken = Taken()
    lanes, number = directory.lanes, destination.cluster_number
    found = [(block, _decoded(block)) for block in lanes.found]
    judge = _Judge(directory, found, now_ms, wall_ms)
    last = max((block.epoch for block, entries in found if not _doubted(entries)), default=0)
    aside: list[tuple[int, Sequence[Entry]]] = []
    for block, entries in found:
        if _doubted(entries) and not _waits(directory, entries):
            lanes.clear(block.block)
            continue
        frames = judge.frames(block, entries)
        if not isinstance(frames, Doubt):
            lanes.keep(block.block)
            taken.lanes.append(Resumed(block.block, entries[0], frames))
            continue
        taken.doubts[frames] += 1
        # Offsets of another cluster say nothing here. Entries of a process before the last one that sent are settled,
        # but for those that this one had taken up and not acknowledged yet.
        known_here = bool(entries) and entries[0].cluster_number == number
        if known_here and (block.epoch == last or _stands(directory, entries)):
            taken.hints.append(Hint(*entries[0].lane, entries[0].offset))
        if frames is Doubt.ELSEWHERE and not block.damaged:  # else the next lane in it would be in doubt, too
            continue
        if frames is not Doubt.MOVED and _waits(directory, entries):
            aside.append((block.block, entries))
        else:
            lanes.clear(block.block)
    _set_aside(lanes, aside)
    _miss(directory, taken)
    return taken


async def rebuild(resumed: Resumed, codec: int) -> LaneBatch:
    """The batch as it was sent: the same records in the same order, under the same identity.

    Gives the loop a turn every few milliseconds: each frame is read from where it stands.

    Raises:
        WalIOError: a frame cannot be read.
        WalCorruptError: a frame does not hold any more.

    """
    entry, batch = resumed.entry, LaneBatch(ENDLESS, codec)
    for ring, slot, places in resumed.frames:
        lookup = Lookup(ring)
        batch.start_group(slot)
        for place in places:
            frame = lookup.frame(slot, place)
            if frame is None:
                message = "a record that was in flight does not hold any more"
                raise WalCorruptError(f"{message} slot={slot.header.ordinal} place={place}")
            payload, number = frame.payload, b"%b%d" % (slot.id_prefix, frame.sequence)
            if ring.holds_copies:
                copy = unpack_moved(payload)
                prefix = fmt.id_prefix(copy.producer_id(slot.header), copy.epoch)
                payload, number = copy.payload, b"%b%d" % (prefix, copy.sequence)
            _, key, value, _, timestamp_ms, headers, _, _ = decode_record(payload)
            batch.add(batch.count, timestamp_ms, key, value, [*(headers or ()), (RECORD_ID_HEADER, number)])
            batch.count += 1
            batch.places.append(place)
            if batch.count % STEP == 0:
                await asyncio.sleep(0)
    identity = entry.identity
    batch.identify(identity.producer_id, identity.epoch, entry.base_sequence)
    batch.entered = batch.begun_as = batch.identity
    batch.begun_ms = entry.at_ms
    batch.possibly = True  # nobody knows what became of the last process's attempts
    batch.finish()
    return batch


def _decoded(block: BlockFound) -> list[Entry]:
    """What the block says: the newest entry, and the one before if it says the same batch to be elsewhere."""
    try:
        entries = [decode(body) for body in block.bodies]
    except ValueError as error:
        log.warning("%s block=%d", error, block.block)
        return []
    return entries[:1] + [entry for entry in entries[1:] if entries[0].moved_from(entry)]


class _Judge:
    """What becomes of each entry of one opening."""

    def __init__(
        self,
        directory: Directory,
        found: Sequence[tuple[BlockFound, Sequence[Entry]]],
        now_ms: int,
        wall_ms: int | None,
    ) -> None:
        """As `take_up`; ``found``: every block, with what it says."""
        self._directory = directory
        self._now_ms = now_ms
        destination = directory.checkpoint.destination
        self._number = number = destination.cluster_number
        # Kafka counts it from the batch's newest timestamp, which under LogAppendTime is the broker's own: so both are
        # looked at, the age of the entry and those of its records.
        self._life_ms = identity_life_ms(destination.expiration_ms, readable=wall_ms is not None)
        newest = [entries[0] for block, entries in found if entries and block.known]
        self._twice = lanes_twice(entry for entry in newest if entry.cluster_number == number)
        # The brokers' clocks are set, whatever ours shows. Nothing is stamped earlier than 0.
        self._remembered_ms = 0 if wall_ms is None else max(wall_ms, EARLIEST) - self._life_ms

    def frames(self, block: BlockFound, entries: Sequence[Entry]) -> Frames | Doubt:
        """The claimed frames of a trusted entry, none when it is spent; or why it is not trusted."""
        doubt = doubt_of(
            entries[0] if entries else None,
            known=block.known,
            damaged=block.damaged,
            twice=bool(entries) and entries[0].lane in self._twice,
            now_ms=self._now_ms,
            cluster_number=self._number,
            life_ms=self._life_ms,
        )
        if doubt is None and self._may_be_older_than_the_last(block):
            return Doubt.SUSPECT
        return doubt or self._in_flight(entries)

    def _may_be_older_than_the_last(self, block: BlockFound) -> bool:
        """What a failed flush has lost leaves the memory as well: the entry before it passes for the newest then.

        That one may be spent, and its slots gone, so that nothing else tells of it; its lane would go on with a
        sequence that the broker has, and takes for a repeat. The generation tells of it whichever opening judges the
        entry: the first one behind the failure may have died half-way.
        """
        return block.epoch < self._directory.ring.suspect.generation

    def _in_flight(self, entries: Sequence[Entry]) -> Frames | Doubt:
        places = [_standing(self._directory, entry) for entry in entries]
        if entries[0].parted:
            return []
        if not any(places):  # recycled, so all is settled; unless a slot is gone that nothing else tells of
            return Doubt.GONE if _names_untold(self._directory, entries) else []
        for entry, frames in zip(entries, places, strict=True):
            outcome = _claimed(entry, frames, self._remembered_ms) if frames else None
            if outcome is not None:
                return outcome
        return Doubt.GONE


def _claimed(entry: Entry, frames: Frames, remembered_ms: int) -> Frames | Doubt | None:
    """As `_Judge.frames`, of one of the places where the batch may be; None: it is not there, or does not count there.

    ``remembered_ms``: what is stamped earlier is old.
    """
    if any(ring.is_suspect(slot) for ring, slot, _ in frames):
        return Doubt.SUSPECT
    try:
        found = _looked_up(frames, remembered_ms)
    except WalIOError as error:
        log.warning("a batch that was in flight cannot be read error=%s", error)
        found = None
    if found is None:
        return Doubt.GONE
    if found.last_settled:  # settled in order: so are all the others, whether their slots are still there or not
        return []
    if found.void or len(frames) < len(entry.groups):
        return None
    if found.old:
        return Doubt.OLD
    for (ring, slot, places), done in zip(frames, found.settled, strict=True):
        ring.claim(slot, places, done)
    return frames


def _doubted(entries: Sequence[Entry]) -> bool:
    return bool(entries) and entries[0].doubted


def _set_aside(lanes: Lanes, doubted: Sequence[tuple[int, Sequence[Entry]]]) -> None:
    """Have them stand there as doubted, in blocks that no lane takes meanwhile.

    Of each lane the one that goes back furthest: a service that dies again and again must not add one each time.
    """
    seen: set[tuple[str, int]] = set()
    for block, entries in sorted(doubted, key=lambda one: one[1][0].offset):
        if entries[0].lane not in seen and (entries[0].doubted or _is_marked(lanes, block, entries)):
            lanes.keep(block)
        else:
            lanes.clear(block)
        seen.add(entries[0].lane)


def _is_marked(lanes: Lanes, block: int, entries: Sequence[Entry]) -> bool:
    """Both, if they are of two places."""
    try:
        for entry in reversed(entries):
            lanes.store(block, encode(replace(entry, doubted=True)))
    except WalError:
        return False
    return True


def _waits(directory: Directory, entries: Iterable[Entry]) -> bool:
    """Whether a record of it waits, whoever sends it, so they may be settled in any order: the last one, mostly."""
    standing = [frames for entry in entries for frames in _standing(directory, entry)]
    return any(_is_waiting(Lookup(ring), slot, [places[-1], *places]) for ring, slot, places in standing)


def _is_waiting(lookup: Lookup, slot: Slot, places: Iterable[int]) -> bool:
    try:
        return any((frame := lookup.frame(slot, place)) is not None and not frame.settled for place in places)
    except WalIOError:
        return True


def _anything_waits(directory: Directory) -> bool:
    """Of an earlier process, so somewhere in its slots; what stands behind damage is not looked for.

    The first record that waits tells, and slots with nothing but settled ones are few: checkpoints free them.
    """
    for ring in (directory.ring, directory.retry):
        for slot in ring.live:
            lookup, at = Lookup(ring), fmt.FIRST_FRAME
            with suppress(WalIOError):
                while (frame := lookup.frame(slot, at // fmt.WORD + fmt.SETTLE_WORD)) is not None:
                    if not frame.settled:
                        return True
                    at = fmt.frame_end(at, len(frame.payload))
    return False


def _miss(directory: Directory, taken: Taken) -> None:
    """Doubt also what is not there any more, in the whole file or in a part of it, and tell of all."""
    lanes = directory.lanes
    # A power cut may take what was never flushed; then all is in doubt anyway.
    lost = lanes.is_new and (directory.same_boot or not directory.ring.suspect.up_to)
    if (lost or lanes.missing) and _anything_waits(directory):
        taken.doubts[Doubt.LOST if lost else Doubt.PARTLY_LOST] += lanes.missing or 1
    _tell(taken)
    lanes.count_anew()  # not before: an opening that fails leaves it to the next one


def _stands(directory: Directory, entries: Iterable[Entry]) -> bool:
    """Whether records of it are in the ring, as far as that is known without reading them."""
    return any(_standing(directory, entry) for entry in entries)


def _standing(directory: Directory, entry: Entry) -> Frames:
    """The groups whose slots are still there."""
    rings = {MAIN: directory.ring, RETRY: directory.retry}
    slots = [(rings[group.ring], rings[group.ring].slot_with(group.ordinal), group) for group in entry.groups]
    return [(ring, slot, list(group.places)) for ring, slot, group in slots if slot is not None]


def _names_untold(directory: Directory, entries: Iterable[Entry]) -> bool:
    """Whether it names a slot that neither a header nor a checkpoint knows: the next one may have its number.

    A checkpoint that lets a slot be recycled knows a number above that slot's.
    """
    rings = {MAIN: directory.ring, RETRY: directory.retry}
    untold = {name: ring.next_ordinal - len(ring.damaged_slots) for name, ring in rings.items()}
    return any(group.ordinal >= untold[group.ring] for entry in entries for group in entry.groups)


@dataclass(slots=True)
class _LookedUp:
    """What the settle words of a batch say. ``settled``: of each group, the places that are marked as done.

    ``old``: all its timestamps are; the newest one is what a broker counts the age of an identity from.
    """

    settled: list[list[int]]
    last_settled: bool = False
    void: bool = False
    old: bool = False


def _looked_up(frames: Frames, remembered_ms: int) -> _LookedUp | None:
    """None where a frame does not hold. Only the last one is looked at where that tells all.

    ``remembered_ms``: what is stamped earlier is old.
    """
    ring, slot, places = frames[-1]
    last = Lookup(ring).frame(slot, places[-1])
    if last is not None and (last.settled or last.void):
        return _LookedUp([], last_settled=last.settled and not last.void, void=last.void)
    settled: list[list[int]] = []
    old = True
    for ring, slot, places in frames:
        lookup, done = Lookup(ring), []
        for place in places:
            frame = lookup.frame(slot, place)
            if frame is None:
                return None
            if frame.void:  # its other frames may stand in a slot that nobody moved
                return _LookedUp([], void=True)
            if frame.settled:
                done.append(place)
            old = old and _is_older(frame.payload, remembered_ms, copy=ring.holds_copies)
        settled.append(done)
    return _LookedUp(settled, old=old)


def _is_older(payload: memoryview, than_ms: int, *, copy: bool) -> bool:
    """By its timestamp; a payload that is no record has none, and what becomes of it is not decided here."""
    try:
        _, _, _, _, timestamp_ms, *_ = decode_record(unpack_moved(payload).payload if copy else payload)
    except (ValueError, RecursionError):
        return False
    return timestamp_ms < than_ms


def _tell(taken: Taken) -> None:
    if taken.claimed:
        lanes = sum(1 for resumed in taken.lanes if resumed.frames)
        log.info("what was in flight is sent again as it was lanes=%d records=%d", lanes, taken.claimed)
    for doubt, count in taken.doubts.items():
        message = "lanes begin with a fresh kafka identity, what was in flight may appear twice: %s lanes=%s"
        log.warning(message, doubt, "?" if doubt is Doubt.LOST else count)
