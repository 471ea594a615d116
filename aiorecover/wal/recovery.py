"""What an opening makes of the bytes it finds. Pure: bytes in, a plan out; nothing is read, written or guessed.

1. Each slot is classified from its two header copies (`classify`): blank, live life, or damaged.
2. The slot size comes from the checkpoint or, without one, from the first header (`slot_bytes_of`).
3. `plan` orders the lives of each ring by ordinal, frees the ones that a durable checkpoint covers, takes the next
   epoch: one above everything that any checkpoint copy or header has seen (I5), and says up to where settle words
   are suspect.

What would mean guessing it refuses (`refusals`). It never changes a damaged slot.

What comes of a slot of any of the three rings, by what is left of it (a blank: whatever it is)

    ┌─────────────────────┬────────────────┬───────────────┬─────────┬────────────────────┬───────────────────────┐
    │ checkpoint          │ others         │ slot          │ header  │ tail               │ outcome               │
    ├─────────────────────┼────────────────┼───────────────┼─────────┼────────────────────┼───────────────────────┤
    │                     │                │ holds         │ newest  │ sealed, open, torn │ all comes             │
    │                     │                │ holds         │ newest  │ middle, page       │ the rest comes        │
    │ both, one           │                │ holds         │ newest  │ last               │ the rest comes        │
    │ none, first, absent │                │ holds         │ newest  │ last               │ the rest, one unknown │
    │ both, one           │                │ holds         │ before  │                    │ missing               │
    │ none, first, absent │                │ holds         │ before  │                    │ false alarm           │
    │ both, one           │                │ holds         │ damaged │                    │ kept and missing      │
    │ both, one           │                │ holds         │ zero    │                    │ missing               │
    │ none, first, absent │ yes, elsewhere │ holds         │ zero    │                    │ unknown               │
    │                     │                │ fresh         │ newest  │                    │ nothing               │
    │ both, one           │                │ reused        │ newest  │                    │ nothing               │
    │ none, first, absent │ yes            │ reused        │ newest  │                    │ false alarm           │
    │ none, first, absent │ elsewhere, no  │ reused        │ newest  │                    │ nothing               │
    │                     │                │ reused        │ before  │                    │ nothing               │
    │ both, one           │                │ reused, fresh │ damaged │                    │ kept                  │
    │ both, one           │                │ reused, fresh │ zero    │                    │ nothing               │
    │ none, first, absent │ yes, elsewhere │ reused, fresh │ zero    │                    │ nothing               │
    │ both, one           │                │ fresh         │ torn    │                    │ nothing               │
    │ none, first, absent │ yes, elsewhere │ fresh         │ torn    │                    │ nothing               │
    │ none, first, absent │ no             │ fresh         │ torn    │                    │ refused               │
    │ none, first         │                │               │ damaged │                    │ refused               │
    │ absent              │ yes, elsewhere │               │ damaged │                    │ kept                  │
    │ absent              │ no             │               │ damaged │                    │ refused               │
    │ none, first, absent │ no             │               │ zero    │                    │ refused               │
    └─────────────────────┴────────────────┴───────────────┴─────────┴────────────────────┴───────────────────────┘

    checkpoint  both: both copies hold. one: one does, the other is damaged or absent. none: none holds, the copy in the
                first place is damaged. first: nothing but a damaged copy in the second place, which is written first of
                all. absent: both are zero, or there is no file.
    others      yes: another slot of the ring can be read, and one of the main ring. elsewhere: only one of that. no:
                none of either. (With none, first and absent the two other rings are refused then, whatever is left of
                them: what the main ring held is gone, and nothing tells what it was.)
    slot        holds: frames of its newest life. reused: that holds none yet; those of the life before stand there, are
                settled, and a durable checkpoint covers them. fresh: its first life, and no frame.
    header      Which life the copies at its two ends are of. newest: one of them, whatever the other one is. before:
                none, but one is of the life before; the other one is, too, or is zero or damaged. damaged: none holds,
                and where one is zero there is a seal or the first frame. torn: the same with neither. zero: both are.
    tail        sealed. open: as a process leaves it that dies. torn: behind all that was flushed, a frame that was
                being stored. middle: a frame does not hold, and others follow. last: the last one that was flushed
                does not. page: it is sealed, and zero where a copying tool could not read the page at the front, with
                the frames in it.
    outcome     all comes: each frame that waits. the rest comes: what does not hold is reported by its numbers. one
                unknown: nothing tells that there was one more. kept: the slot is reported and never written to.
                missing: its frames are reported by number; where it holds them below the header of the life before, or
                none, it is free, for so is what a power cut leaves of a header that was being stored. unknown: nothing
                tells that it held anything, but the log that something may be missing (`Plan.unsure`). nothing: there
                is nothing in it that waits. false alarm: frames of the life before are reported as missing, because an
                older slot is still there, or it was that life's header that was found, and nothing tells that they were
                recycled (nor does the one copy that is left, where only the other one covered them). refused:
                `WalCorruptError`, nothing is changed. New is only a directory in which no file but the checkpoint has a
                length, and of that no more than the second copy is begun (`traces`).

    In the retry ring all this is said of the copies that count. Numbers are the ring's own, gapless in each ring. The
    retry and the dead ring get a slot each in reserve from every opening, in which nothing stands.

Which copies in a slot of the retry ring count

    ┌─────────────────────┬─────────────────────┬───────────┐
    │ checkpoint          │ moved               │ count     │
    ├─────────────────────┼─────────────────────┼───────────┤
    │ both, one           │ made, just made     │ all       │
    │ none, first, absent │ made                │ all       │
    │                     │ in part             │ the first │
    │ both, one           │ not made            │ none      │
    │ none, first, absent │ just made, not made │ none      │
    └─────────────────────┴─────────────────────┴───────────┘

    moved       made: and the originals are recycled. just made: and they still stand in the main ring. in part: those
                of the last copies stand there, whose move was not made; the others are recycled. not made: all stand
                there, and what was copied is void.
    count       What does not comes from the main ring, and a slot in which none does is free. Where no checkpoint is
                left it is not, and nothing tells whether a copy that does not hold counts: it is reported. A move that
                was just made counts as made there where one behind it has its originals recycled.

What comes of the frames that are settled, by their settle words

    ┌─────────────┬──────────────────────────┬──────────────────┬─────────┐
    │ ring        │ checkpoint               │ words            │ settled │
    ├─────────────┼──────────────────────────┼──────────────────┼─────────┤
    │ ring, retry │ both                     │ present          │ stay    │
    │ ring, retry │ one, none, first, absent │ present          │ suffix  │
    │ ring, retry │                          │ earlier          │ suffix  │
    │ dead        │                          │ present, earlier │ stay    │
    │             │                          │ lost             │ again   │
    └─────────────┴──────────────────────────┴──────────────────┴─────────┘

    words       present: all that were stored, and the machine was not down. lost: to a power cut. earlier: of a
                generation that was not dealt with when the next power cut came, and in whose epoch nothing was
                published: without a checkpoint nothing tells of it (`UNTOLD`).
    settled     stay: they are not delivered. suffix: those of a lane behind the first one in it that waits are
                delivered again. again: all are, but for what the checkpoint's watermark covers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import OPENINGS_MOST, Checkpoint, Copy, Openings, RingState
from aiorecover.wal.ends import Ends, above, furthest
from aiorecover.wal.epochs import EpochEnd
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.refusals import Span, check_one_directory, check_one_size, check_order, check_readable
from aiorecover.wal.suffix import Suspicion
from aiorecover.wal.traces import NO_TRACES, Traces

UNTOLD = 1_000
"""Epochs that are left out where no checkpoint is left. An opening in which nothing is published stands in no header,
but it may have settled, with the mark of its generation: taken for the present one's, that would say that all before it
was done again. So many in a row is a process that starts every ten seconds for almost three hours; few enough for
marks, which are epochs modulo 65,535: that often, 65 times, may both copies be lost before two generations of a
directory look alike."""


@dataclass(frozen=True, slots=True)
class SlotFound:
    """One slot as found.

    ``state``: blank; torn: the header of its first life was being stored, and no frame stands behind it; live; damaged.
    ``begun``: of a slot without a seal, its first frame holds.
    """

    index: int
    state: str
    header: fmt.SlotHeader | None = None
    seal: fmt.Seal | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """A slot that may hold records still to deliver; ``seal`` is None when a crash left it open; ``begun`` as found."""

    index: int
    header: fmt.SlotHeader
    seal: fmt.Seal | None
    begun: bool

    @property
    def reached(self) -> int:
        """Position up to which frames are known to stand in it, and in the slots of its epoch before it."""
        last = self.header.first_sequence - (not self.begun) if self.seal is None else self.seal.last_sequence
        return fmt.position(self.header.epoch, last)

    @property
    def span(self) -> Span:
        """What is known to stand in it."""
        last = self.header.first_sequence - 1 if self.seal is None else self.seal.last_sequence
        return Span(self.header.ordinal, self.header.first_position, fmt.position(self.header.epoch, last + 1))

    @property
    def holds_some(self) -> bool:
        """It, or a slot of its epoch before it, has a frame."""
        return self.reached & fmt.SEQUENCE_MASK > 0


LOST = RingState(by_originals=True)  # of the retry ring, where no checkpoint tells which copies count


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What one ring starts from. Frames up to ``floor`` are done, whatever their settle words say.

    ``unsure``: some may be gone of which no copy of the checkpoint that is left tells.
    """

    floor: int = 0
    next_ordinal: int = 1
    flushed: int = 0
    earlier: Ends = ()
    seen: Ends = ()
    by_originals: bool = False
    lives: list[Life] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)  # index, salt of the life before
    damaged: list[int] = field(default_factory=list)
    unsure: bool = False

    @property
    def state(self) -> RingState:
        """As a checkpoint says it; without the numbers that damaged slots may have, which each opening passes over.

        So the next one can still tell, if this one dies early, that what is in flight may be in such a slot.
        """
        known = self.next_ordinal - len(self.damaged)
        return RingState(self.floor, known, self.flushed, self.by_originals, self.earlier, self.seen)

    @property
    def ends(self) -> Ends:
        """Of each epoch up to where frames must be there; the oldest first."""
        return self.state.told


@dataclass(frozen=True, slots=True)
class Plan:
    """What a directory starts from; ``newest`` is the checkpoint that counts.

    ``same_boot``: the machine was not down since that was written; False where nothing tells. ``producer_id``: of an
    opening before; None: the directory is new. ``openings``: as a checkpoint says them, of those before. ``before``:
    the last epoch, if there was one.
    """

    newest: Checkpoint | None
    same_boot: bool
    producer_id: int | None
    openings: Openings
    before: EpochEnd | None
    epoch: int
    moved: int
    suspect: Suspicion
    main: RingPlan
    retry: RingPlan
    dead: RingPlan

    @property
    def unsure(self) -> list[str]:
        """The rings of which something may be gone that nothing names."""
        lost = self.newest is None and self.producer_id is not None
        rings = zip((RING, RETRY, DEAD), (self.main, self.retry, self.dead), strict=True)
        return [name for name, ring in rings if lost or ring.unsure]

    @property
    def copies_up_to(self) -> int | None:
        """Position in the retry ring up to which copies count; None: those count whose originals are gone."""
        return None if self.newest is None or self.retry.by_originals else self.retry.flushed

    @property
    def moved_up_to(self) -> int:
        """P; where it is not known, what stood before the oldest slot of the main ring may have been moved."""
        if self.copies_up_to is not None or not (self.main.lives or self.retry.lives):
            return self.moved
        return max(self.moved, self.main.floor if self.main.lives else fmt.position(self.epoch, 0))


HEAD_BYTES = fmt.FIRST_FRAME + fmt.FRAME_BYTES  # of a slot's front: what is reserved there, and the first frame's own


def classify(index: int, head: bytes, end: bytes) -> SlotFound:
    """One slot from the reserved bytes of its two ends; ``head`` goes on with the first frame's (`HEAD_BYTES`).

    Both header copies are stored before the life's first frame, the one at the end first. So the newer valid copy
    counts, and a slot with one zero and one torn copy never held a frame, and is free, if nothing else stands there:
    with a seal or a frame both copies were whole, and are damaged now.
    """
    headers = [fmt.unpack_slot_header(part) for part in (head, end)]
    valid = [header for header in headers if header is not None and fmt.header_fits(header)]
    if not valid:
        zero = [not any(part[: fmt.HEADER_BYTES]) for part in (head, end)]
        begun = any(zero) and not any(head[fmt.HEADER_BYTES :]) and not any(end[fmt.HEADER_BYTES :])
        return SlotFound(index, "blank" if all(zero) else "torn" if begun else "damaged")
    header = max(valid, key=lambda found: found.ordinal)
    seals = [fmt.unpack_seal(part[fmt.SEAL_OFFSET :], header.salt) for part in (head, end)]
    fitting = (seal for seal in seals if seal is not None and fmt.seal_fits(seal, header))
    return SlotFound(index, "live", header, next(fitting, None))


def first_headers(read: Callable[[int, int], bytes]) -> Iterator[fmt.SlotHeader | None]:
    """Headers where a ring of any slot size would have its first ones; ``read`` takes offset and length.

    Only asked where no checkpoint tells the size.
    """
    powers = range(fmt.SLOT_BYTES_MIN.bit_length() - 1, fmt.SLOT_BYTES_MAX.bit_length())
    for place in (0, *(place for power in powers for place in ((1 << power) - fmt.RESERVED, 1 << power))):
        yield fmt.unpack_slot_header(read(place, fmt.HEADER_BYTES).ljust(fmt.HEADER_BYTES, b"\0"))


def slot_bytes_of(copies: Iterable[Copy], headers: Iterable[fmt.SlotHeader | None], default: int) -> int:
    """The stored slot size, which wins over the option; ``default`` for an empty directory."""
    for copy in copies:
        if copy.checkpoint is not None and fmt.possible_slot_bytes(copy.checkpoint.slot_bytes):
            return copy.checkpoint.slot_bytes
    for header in headers:
        if header is not None and fmt.possible_slot_bytes(header.slot_bytes):
            return header.slot_bytes
    return default


def plan(
    copies: Sequence[Copy],
    main: Iterable[SlotFound],
    retry: Iterable[SlotFound] = (),
    dead: Iterable[SlotFound] = (),
    *,
    boot_id: str = "",
    traces: Traces = NO_TRACES,
) -> Plan:
    """The state to start from.

    Raises:
        WalCorruptError: the files were copied together from several states, or nothing tells what was delivered.

    """
    rings = [list(main), list(retry), list(dead)]
    newest = max(copies, key=lambda copy: copy.generation).checkpoint
    if newest is None:
        check_readable(copies, [{slot.state for slot in ring} for ring in rings], traces)
    headers = [slot.header for slots in rings for slot in slots if slot.header is not None]
    check_one_size(copies, headers)
    epochs = [copy.checkpoint.epoch for copy in copies if copy.checkpoint is not None]
    epochs += [header.epoch for header in headers]
    last_epoch = max(epochs, default=0)
    epoch = last_epoch + 1 + (UNTOLD if newest is None and last_epoch > 0 else 0)
    moved = 0 if newest is None else newest.moved
    same_boot = newest is not None and newest.written_in(boot_id)
    states = [RingState(), LOST, RingState()] if newest is None else [newest.main, newest.retry, newest.dead]
    # Behind a clean end nothing was stored before the next opening had both copies durable.
    known = all(copy.state == "valid" for copy in copies) or (newest is not None and newest.closed)
    marks = [moved, 0, 0]
    states = [state.found(same_boot=same_boot) for state in states]
    plans = [_plan_ring(*of_ring, known=known) for of_ring in zip(states, rings, marks, strict=True)]
    openings = _openings(newest, headers)
    check_one_directory(openings, traces)
    producer_id = openings[-1][1] if openings else None
    return Plan(
        newest=newest,
        same_boot=same_boot,
        producer_id=producer_id,
        openings=tuple((epoch, fmt.nonce_of(producer_id)) for epoch, producer_id in openings[-OPENINGS_MOST:]),
        before=None
        if producer_id is None
        else EpochEnd(producer_id, last_epoch, _end_of(last_epoch, newest, rings[0])),
        epoch=epoch,
        moved=moved,
        suspect=_suspicion(copies, newest, epoch, last_epoch, boot_id),
        main=_with_seen(plans[0], states[0]),
        retry=plans[1],  # behind what the checkpoint knows of it nothing counts
        dead=_with_seen(plans[2], states[2]),
    )


def _plan_ring(state: RingState, slots: Sequence[SlotFound], moved: int, *, known: bool) -> RingPlan:
    """``known``: the newest checkpoint is there, so it says what was recycled; else that may be all before the oldest.

    Then the floor stands before the oldest life, or records that were settled and recycled would be missed. Where there
    is none the ring is gone, and all is missed that is known to have waited.
    """
    lives = sorted(
        (Life(slot.index, slot.header, slot.seal, slot.begun) for slot in slots if slot.header is not None),
        key=lambda life: life.header.ordinal,
    )
    check_order([life.span for life in lives])
    floor = max(state.watermark, moved)
    unsure = not known and any(end > floor for end in _told_before(state, lives))
    if not known and lives:
        floor = max(floor, lives[0].header.first_position - 1)
    free, live = [], []
    for life, later in zip(lives, [*lives, None][1:], strict=True):
        if is_covered(life.header, life.seal, None if later is None else later.header.first_position, floor):
            free.append((life.index, life.header.salt))
        else:
            live.append(life)
    free += [(slot.index, 0) for slot in slots if slot.state in {"blank", "torn"}]
    damaged = [slot.index for slot in slots if slot.state == "damaged"]
    untold = len(damaged)  # lives that may have come behind all that are known: what is recycled, a checkpoint knows
    return RingPlan(
        floor=floor,
        next_ordinal=max(state.next_ordinal, lives[-1].header.ordinal + 1 if lives else 1) + untold,
        flushed=state.flushed,
        earlier=above(floor, state.earlier),
        by_originals=state.by_originals and bool(live),
        lives=live,
        free=free,
        damaged=damaged,
        unsure=unsure,
    )


def _told_before(state: RingState, lives: Sequence[Life]) -> Ends:
    """Of each epoch the last position that stood before the oldest life, or in a ring without one."""
    if not lives:
        return state.told
    first = lives[0].header
    joined = (first.first_position - 1,) if first.first_sequence > 1 else ()
    return (*(end for end in state.told if end < first.first_position), *joined)


def _with_seen(made: RingPlan, state: RingState) -> RingPlan:
    """With what the next opening cannot know from flushes: what stands there now, or did at an opening before."""
    found = furthest(state.told, (life.reached for life in made.lives if life.holds_some))
    return replace(made, seen=above(made.floor, sorted({*found} - {*made.state.ends})))


def is_covered(header: fmt.SlotHeader, seal: fmt.Seal | None, followed_at: int | None, durable: int) -> bool:
    """I1: only a durable watermark (or P) over its last position frees a slot; ``followed_at``: where the next begins.

    Without a seal that is the one before the next slot begins: it was sealed when a checkpoint covered it, and has lost
    that. Where there is no next one it may go on behind all that is known.
    """
    if seal is None:
        return followed_at is not None and followed_at <= durable + 1
    return fmt.position(header.epoch, seal.last_sequence) <= durable


def _end_of(epoch: int, newest: Checkpoint | None, main: Sequence[SlotFound]) -> int:
    """The last sequence of an epoch that a seal, a flush or the watermark tells of."""
    seals = (slot.seal for slot in main if slot.header is not None and slot.header.epoch == epoch)
    told = [] if newest is None else [newest.main.flushed, newest.main.watermark, newest.moved]
    marks = [last for other, last in map(fmt.parts, told) if other == epoch]
    return max([0, *marks, *(seal.last_sequence for seal in seals if seal is not None)])


def _suspicion(
    copies: Sequence[Copy], newest: Checkpoint | None, epoch: int, last_epoch: int, boot_id: str
) -> Suspicion:
    """Which settle words may be lost; ``epoch`` is the one that begins, ``last_epoch`` the highest found.

    All may be when the machine was down, a flush had failed, or nothing tells (no checkpoint, or one copy damaged).
    None are after a clean end: everything was flushed then, and nothing stored since.
    """
    if last_epoch == 0:
        return Suspicion()
    everything = fmt.position(last_epoch, fmt.SEQUENCE_MASK)
    if newest is None:
        return Suspicion(everything, epoch, since=1)
    clean = newest.closed and newest.epoch == last_epoch
    if clean or (newest.written_in(boot_id) and not newest.poisoned and all(copy.state == "valid" for copy in copies)):
        return newest.suspect
    unfinished = newest.suspect.up_to > 0
    return Suspicion(everything, epoch, since=newest.suspect.since if unfinished else epoch)


def _openings(newest: Checkpoint | None, headers: Sequence[fmt.SlotHeader]) -> list[tuple[int, int]]:
    """Epoch and producer id of each that is known, in order: also of those of which nothing waits."""
    owners = {(header.epoch, header.producer_id) for header in headers}
    if newest is not None:
        owners.add((newest.epoch, newest.producer_id))
        owners.update((epoch, fmt.with_nonce(newest.producer_id, nonce)) for epoch, nonce in newest.openings)
    return sorted(owners)
