"""A look at a directory from outside: no lock is taken, and nothing is written, made or cut.

For the command line and for Spark; the owner may be another process at full speed, dead, or never have been on this
machine (a copy). What is promised, and what is not, stands in the package docstring under "Read-only view".
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Self

from aiorecover.errors import WalCorruptError, WalError, WalFormatError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint, Copy, RingState, unpack
from aiorecover.wal.directory import CHECKPOINT, FILES, LANES, LOCK, RING_GONE, UNSURE, Directory
from aiorecover.wal.ends import Ends, furthest
from aiorecover.wal.gaps import START, Place, flushed_behind, last_flushed, start_of, unjoined
from aiorecover.wal.instance import never_ours
from aiorecover.wal.losses import Damage
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.recovery import Plan, RingPlan, SlotFound, first_headers, plan, slot_bytes_of
from aiorecover.wal.storage import OPERATING_SYSTEM, ForeignFile, StorageFile, names_in
from aiorecover.wal.traces import traces
from aiorecover.wal.walk import RETRIES, FrameView, RecycledError, SlotView, SlotWalk, look_at

WALKS = 3  # of a ring that was `View.unsure`: an owner that rewrites one is done with it for long
LISTINGS = 10  # of the retry ring: it would have to be rewritten during each of them

__all__ = [
    "WALKS",
    "Damage",
    "FrameView",
    "RecycledError",
    "SlotView",
    "Summary",
    "View",
    "frames_of",
    "hardly_begun",
    "open_view",
    "view_of",
]


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of one walk through a ring.

    ``missing``: frames that are not there. ``recycled``: slots that began another life or were cut off during the
    walk; everything in them was settled or moved. ``bytes_used``: size of the slots that hold something still needed.
    ``suspect_up_to``: after a power cut or a failed flush, settle words up to this position may be wrong, and a part
    of what counts as settled here is delivered again (`suffix`); 0: none may.
    """

    waiting: int
    settled: int
    missing: int
    slots: int
    blank_slots: int
    damaged_slots: int
    recycled: int
    bytes_used: int
    bytes_allocated: int
    suspect_up_to: int


class View:
    """One ring of an instance directory, as it is from moment to moment.

    ``producer_id``: that of the last opening, as it stands in the ids of its records; None when nothing tells it.
    ``checkpoint``: the newest valid copy when the slots were last listed; ``suspect_up_to`` is as in `Summary`, of the
    same moment. ``missing`` and ``recycled``: what the last `frames` found.
    """

    def __init__(
        self, path: Path, ring: str, open_file: Callable[[str], StorageFile | None], boot_id: str = ""
    ) -> None:
        """Look at the files that ``open_file`` opens by name; None: it is not there. ``boot_id``: of this machine.

        Raises:
            WalCorruptError: neither checkpoint nor ring can be read, or they contradict each other.
            WalFormatError: a newer version wrote them.
            WalIOError: the operating system refused.

        """
        self.path = path
        self.ring = ring
        self._open_file = open_file
        self._files: dict[str, StorageFile] = {}
        self._boot_id = boot_id  # empty: unknown
        self._copies = self._read_copies()
        self.checkpoint = _newest(self._copies)
        self.slot_bytes = self._find_slot_bytes()
        self.producer_id = self._find_producer()
        self.suspect_up_to = 0
        # Of each epoch all up to there stands in a listed slot, or is covered, or gone.
        self._ends: Ends = ()
        self._floor = 0
        self.missing: list[Damage] = []
        self.recycled: list[SlotView] = []

    @property
    def ring_gone(self) -> bool:
        """There is no file `ring`, and something may have waited in it: the next start says so."""
        return self.checkpoint is not None and not self.checkpoint.left_nothing and self._file(RING) is None

    @property
    def ends(self) -> Ends:
        """Up to where the epochs go, as was known before the slots were listed: for `frames_of`."""
        return self._ends

    @property
    def producers(self) -> dict[int, str]:
        """The producer ids of the openings that the checkpoint remembers, by their epochs."""
        known = self.checkpoint
        if known is None:
            return {}
        openings = {epoch: fmt.with_nonce(known.producer_id, nonce) for epoch, nonce in known.openings}
        return {epoch: fmt.producer_text(one) for epoch, one in (openings | {known.epoch: known.producer_id}).items()}

    def slots(self) -> list[SlotView]:
        """Every slot of the ring: the live ones in the order of their records, then the blank and damaged ones.

        All lives that began before the newest one listed are there, or were recycled. A slot of which nothing counts is
        blank.

        Raises:
            RecycledError: the retry ring was rewritten again and again meanwhile: look again.
            WalCorruptError: the ring mixes two producers, or holds one slot twice.
            WalFormatError: a newer version wrote it.
            WalIOError: the operating system refused.

        """
        # Before the files: what it says was flushed stands in slots that were begun by now, whatever its owner does.
        before, found = self._listed()
        ends = self._ends_of(before)
        next_opening = self._plan(found)  # refuses what contradicts itself
        self._ends, self._floor = ends, self._ring_of(next_opening).floor
        views = self._views(found, next_opening)
        suspect = next_opening.suspect.up_to
        still = (one for one in views if one.header is not None and not one.covered)
        self.suspect_up_to = suspect if any(one.first_position <= suspect for one in still) else 0
        return views

    def _listed(self) -> tuple[Checkpoint | None, list[SlotFound]]:
        """The slots, and the checkpoint before them; the one behind them covers what was recycled before the scan.

        If a rewriting of the retry ring was made in between, that one covers the originals, while the copies may stand
        in lives that began too late for the scan: then both are out of the list, and it is made anew.
        """
        self._copies = self._read_copies()
        for _ in range(LISTINGS):
            before = _newest(self._copies)
            self.slot_bytes = self.slot_bytes or self._find_slot_bytes()  # its owner had only just begun
            found = self._scan_twice()
            self._copies = self._read_copies()
            self.checkpoint = _newest(self._copies)
            if self.ring != RETRY or not _rewritten(before, self.checkpoint):
                return before, found
        message = "the retry ring was rewritten whenever its slots were listed: look again"
        raise RecycledError(f"{message} path={self.path}")

    @property
    def unsure(self) -> bool:
        """A slot of the retry ring was recycled during the last walk, which may have missed what was rewritten."""
        return self.ring == RETRY and bool(self.recycled)

    def frames(self, slots: Sequence[SlotView] | None = None, *, settled: bool = False) -> Iterator[FrameView]:
        """The records that wait, in order; with ``settled`` also those that are done and still there.

        ``slots``: walk only these. What is missing and which slots were recycled meanwhile stands in ``missing`` and
        ``recycled`` afterwards.

        Raises:
            WalCorruptError: the ring holds one position twice.
            WalIOError: the operating system refused.

        """
        if slots is None:
            return self._walk(self.slots(), settled=settled, whole=True)
        return self._walk(sorted(slots, key=lambda one: one.ordinal or 0), settled=settled, whole=False)

    def _walk(self, slots: Sequence[SlotView], *, settled: bool, whole: bool) -> Iterator[FrameView]:
        """``whole``: nothing was left out of ``slots``, so that a gap between two of them is damage."""
        self.missing, self.recycled = [], []
        before: Place | None = START if whole else None
        last = copied = 0
        file = self._file(self.ring)
        walked = [slot for slot in slots if file is not None and (settled or not slot.covered)]
        for slot, following in zip_longest(walked, walked[1:]):
            if file is None or slot.header is None:
                continue
            walk = SlotWalk(file, slot, slot.header, copied)
            if before is not None:
                self._tell_between(before, walk.start, copied, slot)
            before = None
            try:
                for frame in walk.frames(settled=settled):
                    if frame.number <= last:
                        message = "the ring holds one position twice: it was copied together from several states"
                        raise WalCorruptError(f"{message} path={self.path} file_offset={frame.file_offset}")
                    last = frame.number
                    yield frame
            except RecycledError:
                self.recycled.append(slot)  # what was not there, was settled or moved
                continue
            self.missing += _beside(walk.missing, file, following)
            copied = walk.copied
            before = walk.place if whole else None
        if before is not None:
            self._tell_between(before, None, copied)

    def _tell_between(self, before: Place, following: Place | None, copied: int, slot: SlotView | None = None) -> None:
        """As the next opening's reader does it; ``copied``: as in `SlotWalk`; ``slot``: the one that follows."""
        damages = [flushed_behind(before, following, end, self._floor) for end in self._ends]
        if following is not None:
            damages.append(unjoined(before, following, self._floor))
        told = [replace(damage, after=copied) for damage in damages if damage is not None]
        self.missing += _beside(told, self._file(self.ring), slot)

    def gone_before(self, slot: SlotView | None) -> list[Damage]:
        """What is missing of epochs of which no slot is left before ``slot``, the oldest one that was listed.

        None: no slot was. `frames_of` tells the rest.
        """
        following = _start_of(slot)
        damages = (flushed_behind(START, following, end, self._floor) for end in self._ends)
        return [damage for damage in damages if damage is not None]

    def lost(self, slot: SlotView, begin: int, following: SlotView | None, ends: Ends) -> list[Damage] | None:
        """What is missing, from sequence ``begin`` on, of a slot that `frames_of` was told to read and that is gone.

        Nothing, if its owner has recycled it: then the checkpoint covers it by now (I1). None: it is gone, and nothing
        tells what it held. The view's `slots` are those of a listing that was made when the slot was gone.
        """
        if slot.header is None:
            return []
        epoch = slot.header.epoch
        place = Place(epoch, begin, slot.header.ordinal, slot.file_offset + fmt.FIRST_FRAME)
        sealed = fmt.position(epoch, slot.seal.last_sequence) if slot.seal is not None else 0
        by_now = fmt.position(epoch, last_flushed(self._ends, epoch))
        after = _start_of(following) or self._start_behind(slot.header)
        told = [flushed_behind(place, after, end, self._floor) for end in furthest(ends, (by_now, sealed))]
        if after is not None and after.epoch == epoch:
            told.append(unjoined(place, after, self._floor))
        damages = [damage for damage in told if damage is not None]
        uncovered = self._floor < fmt.position(epoch, begin) - 1 or self._file(self.ring) is None
        unknown = after is None and slot.seal is None and uncovered
        return None if unknown and not damages else damages

    def _start_behind(self, header: fmt.SlotHeader) -> Place | None:
        """Where the oldest slot begins that was begun after the life of this header."""
        live = (one.header for one in self._scan() if one.header is not None)
        later = [one for one in live if one.ordinal > header.ordinal]
        return start_of(min(later, key=lambda one: one.ordinal), 0) if later else None

    def doubts(self, rings: Collection[str]) -> list[str]:
        """What the next start would say of records that may be missing from these rings, and that nothing names.

        Raises:
            WalError: it would be refused, for this reason.

        """
        unsure = [ring for ring in self.next_opening().unsure if ring in rings]
        told = [RING_GONE] if RING in rings and self.ring_gone else []
        if unsure and self.checkpoint is not None:  # without one it is said to be lost
            told.append(f"{UNSURE} rings={','.join(unsure)}")
        return told

    def summary(self) -> Summary:
        """Walk everything that the checkpoint does not cover, and count.

        Raises:
            WalError: as `slots` and `frames`.

        """
        slots = self.slots()
        waiting = 0
        done = sum(slot.count or 0 for slot in slots if slot.covered)
        uncovered = [slot for slot in slots if not slot.covered]
        for frame in self._walk(uncovered, settled=True, whole=True):
            waiting += not frame.settled
            done += frame.settled
        file = self._file(self.ring)
        used = [slot for slot in slots if slot.state == "damaged" or (slot.state == "live" and not slot.covered)]
        return Summary(
            waiting=waiting,
            settled=done,
            missing=sum(damage.count for damage in self.missing),
            slots=len(slots),
            blank_slots=sum(slot.state in {"blank", "torn"} for slot in slots),
            damaged_slots=sum(slot.state == "damaged" for slot in slots),
            recycled=len(self.recycled),
            bytes_used=len(used) * self.slot_bytes,
            bytes_allocated=file.size() if file is not None else 0,
            suspect_up_to=self.suspect_up_to,
        )

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_opening(self) -> Plan:
        """What an opening at this moment would start from: it looks at all three rings, a view only at its own.

        Raises:
            WalError: it would refuse, for this reason.

        """
        files = [self._file(name) for name in (RING, RETRY, DEAD)]
        beside = traces(files, self._file(LANES))  # before the checkpoint, which is durable before there are any
        copies = self._read_copies()
        try:
            rings = (_scan(file, self.slot_bytes) for file in files)
            return plan(copies, *rings, boot_id=self._boot_id, traces=beside)
        except WalCorruptError as error:
            raise WalCorruptError(f"{error} path={self.path}") from None

    # -- what is there -----------------------------------------------------------------------------------------------

    def _file(self, name: str) -> StorageFile | None:
        """The file, once it is there."""
        if name not in self._files:
            found = self._open_file(name)
            if found is None:
                return None
            self._files[name] = found
        return self._files[name]

    def _read_copies(self) -> list[Copy]:
        """Both copies. Only one of them is being written at a time, but by the time we read the second it may be it."""
        file = self._file(CHECKPOINT)
        if file is None:
            return [Copy("blank"), Copy("blank")]
        for _ in range(RETRIES):
            copies = [unpack(file.read(index * COPY_BYTES, COPY_BYTES)) for index in (0, 1)]
            if all(copy.state == "valid" for copy in copies):
                break
        return copies

    def _find_slot_bytes(self) -> int:
        """The stored slot size, if need be from another ring; 0 for a ring that holds nothing yet."""
        file = self._file(self.ring)
        found = slot_bytes_of(self._copies, first_headers(file.read) if file is not None else (), 0)
        for name in {RING, RETRY, DEAD} - {self.ring} if not found else ():
            with suppress(WalError):  # it is not what is looked at
                other = self._file(name)
                found = found or (slot_bytes_of((), first_headers(other.read), 0) if other is not None else 0)
        if not found and file is not None and any(file.read(0, fmt.RESERVED)):
            message = "neither checkpoint nor ring can be read: restore the files from a copy"
            raise WalCorruptError(f"{message} path={self.path} ring={self.ring}")
        return found

    def _find_producer(self) -> str | None:
        if self.checkpoint is not None:
            return fmt.producer_text(self.checkpoint.producer_id)
        headers = (one.header for one in self._scan() if one.header is not None)
        newest = max(headers, key=lambda header: header.epoch, default=None)
        return fmt.producer_text(newest.producer_id) if newest is not None else None

    def _views(self, found: list[SlotFound], next_opening: Plan) -> list[SlotView]:
        """The slots in the order of `slots`, with what an opening would know of their frames."""
        known = self._ring_of(next_opening)
        up_to = next_opening.copies_up_to if self.ring == RETRY else None
        ordered = sorted((_as_it_counts(one, up_to) for one in found), key=_order)
        return [
            SlotView(
                path=self.path,
                ring=self.ring,
                index=one.index,
                slot_bytes=self.slot_bytes,
                state=one.state,
                header=one.header,
                seal=one.seal,
                durable=known.floor,
                counts_up_to=up_to,
                flushed=_flushed_in(one, following, known.ends),
                followed_at=_first_of(following),
            )
            for one, following in zip_longest(ordered, ordered[1:])
        ]

    def _ends_of(self, checkpoint: Checkpoint | None) -> Ends:
        if checkpoint is None:
            return ()
        state = {RING: checkpoint.main, RETRY: checkpoint.retry, DEAD: checkpoint.dead}[self.ring]
        return state.found(same_boot=checkpoint.written_in(self._boot_id)).told

    def _ring_of(self, next_opening: Plan) -> RingPlan:
        return {RING: next_opening.main, RETRY: next_opening.retry, DEAD: next_opening.dead}[self.ring]

    def _plan(self, found: list[SlotFound]) -> Plan:
        """What an opening at this moment would start from, as far as this ring tells; refused only if the others agree.

        So a ring can still be looked at where an opening needs all three.
        """
        rings = {RING: [], RETRY: [], DEAD: [], self.ring: found}
        try:
            return plan(self._copies, rings[RING], rings[RETRY], rings[DEAD], boot_id=self._boot_id)
        except WalCorruptError:
            if self.checkpoint is not None:
                raise
            return self.next_opening()

    def _scan(self) -> list[SlotFound]:
        return _scan(self._file(self.ring), self.slot_bytes)

    def _scan_twice(self) -> list[SlotFound]:
        """All lives up to the newest one that the first scan saw.

        The owner may begin a life in a slot that was passed and another one in a slot that was not: such a list would
        have a hole. Each life up to the newest had begun by the end of the first scan, so the second one sees it, or
        it was recycled. Of what began later nothing is taken: there the slot stands as it was at first, if the file
        had it then.
        """
        first, second = self._scan(), self._scan()
        newest = max((one.header.ordinal for one in first if one.header is not None), default=0)
        at_first = chain(first, repeat(None))
        chosen = (
            after if after.header is None or after.header.ordinal <= newest else before
            for before, after in zip(at_first, second, strict=False)
        )
        return [one for one in chosen if one is not None]


def open_view(path: Path | str, ring: str = RING) -> View:
    """Look at ``ring``, ``retry`` or ``dead`` of an instance directory; a ring that is not there has no slots.

    Raises:
        WalFormatError: the directory holds neither checkpoint nor ring and is not `hardly_begun`, or a newer version's.
        WalCorruptError: neither checkpoint nor ring can be read.
        WalIOError: the operating system refused.

    """
    path = Path(path)
    names = names_in(path)
    if not {CHECKPOINT, RING} & set(names) and not hardly_begun(path, names):
        message = "no instance directory: name one that holds a ring, below wal_dir"
        raise WalFormatError(f"{message} path={path}")
    with ExitStack() as opened:

        def open_file(name: str) -> StorageFile | None:
            return opened.enter_context(ForeignFile(path / name)) if name in names_in(path) else None

        view = View(path, ring, open_file, OPERATING_SYSTEM.boot_id())
        opened.pop_all()
        return view


def view_of(directory: Directory, ring: str) -> View:
    """What another process would see of a ring of a directory that is open here."""
    files, path = directory.file_system, directory.path
    return View(path, ring, lambda name: files.open_foreign(path / name), files.boot_id())


def hardly_begun(path: Path, names: Iterable[str]) -> bool:
    """Whether ``path``, which holds ``names``, is what a first start leaves that dies while it makes its files.

    Only a lock, with a process id in it or nothing, and beside it no more than empty files of ours: nothing is lost.
    """
    found = {name for name in names if not never_ours(name)}
    if LOCK not in found or not found <= FILES:
        return False
    with suppress(WalError), ForeignFile(path / LOCK) as lock:
        written = lock.read(0, fmt.HEADER_BYTES).strip()
        return (not written or written.isdigit()) and all(_is_empty(path / name) for name in found - {LOCK})
    return False


def _is_empty(path: Path) -> bool:
    with ForeignFile(path) as file:
        return file.size() == 0


def frames_of(
    slot: SlotView,
    *,
    settled: bool = False,
    missing: list[Damage] | None = None,
    begins: bool = False,
    following: SlotView | None = None,
    ends: Ends = (),
) -> Iterator[FrameView]:
    """The records of one slot that was listed, maybe by another process; damage is added to ``missing``.

    What is not in any slot is found where two listed ones do not join: ``begins`` says that none of its epoch was
    listed before it, ``following`` is the next one. ``ends`` are those of the view that listed it: they tell what is
    missing behind it of its epoch, and of those of which no slot was listed before the next one.

    Raises:
        RecycledError: the slot is in another life now; nothing in it waited.
        WalIOError: the operating system refused.

    """
    if slot.header is None:
        return
    with ForeignFile(slot.path / slot.ring) as file:
        walk = SlotWalk(file, slot, slot.header)
        if begins:
            walk.begin()
        yield from walk.frames(settled=settled)
        found = walk.missing
        if following is not None and following.header is not None and following.epoch == slot.epoch:
            after = SlotWalk(file, following, following.header, walk.copied)
            after.follow(walk)
            found = found + after.missing
        behind = (flushed_behind(walk.place, _start_of(following), end, slot.durable) for end in ends)
        found = found + [replace(damage, after=walk.copied) for damage in behind if damage is not None]
        found = _beside(found, file, following)
    if missing is not None:
        missing += found


def _start_of(slot: SlotView | None) -> Place | None:
    return None if slot is None or slot.header is None else start_of(slot.header, slot.file_offset)


def _beside(damages: list[Damage], file: StorageFile | None, following: SlotView | None) -> list[Damage]:
    """With what the slot that follows begins with, where nothing else tells what stood behind, as its reader has it."""
    if file is None or following is None or following.header is None or following.ring != RETRY:
        return damages
    if not any(damage.before == 0 for damage in damages):
        return damages
    behind = 0
    with suppress(RecycledError, WalIOError):  # what it began with is settled or moved, or cannot be read
        behind = SlotWalk(file, following, following.header).begins_with()
    # Else a rewriting has begun there, anew with the oldest.
    return [
        replace(damage, before=behind) if damage.before == 0 and behind > damage.after else damage for damage in damages
    ]


def _scan(file: StorageFile | None, size: int) -> list[SlotFound]:
    if file is None or not size:
        return []
    count, rest = divmod(file.size(), size)
    if rest and any(file.read(count * size, fmt.HEADER_BYTES)):  # cut inside a slot: what is left is read
        count += 1
    return [look_at(file, index, size) for index in range(count)]


def _order(slot: SlotFound) -> tuple[bool, int, int]:
    """The live ones in the order of their records, then the others as they lie."""
    return slot.header is None, slot.header.ordinal if slot.header is not None else 0, slot.index


def _as_it_counts(slot: SlotFound, counts_up_to: int | None) -> SlotFound:
    """As the next opening has it: a slot that begins behind the last copy that counts is free."""
    if slot.header is None or counts_up_to is None:
        return slot
    return SlotFound(slot.index, "blank") if slot.header.first_position > counts_up_to else slot


def _first_of(slot: SlotFound | None) -> int | None:
    return None if slot is None or slot.header is None else slot.header.first_position


def _flushed_in(slot: SlotFound, following: SlotFound | None, ends: Iterable[int]) -> int:
    """The position up to which a slot that was left open had been filled, as far as a flush or the next one tells."""
    if slot.header is None or slot.seal is not None:
        return 0
    epoch = slot.header.epoch
    if following is not None and following.header is not None and following.header.epoch == epoch:
        return fmt.position(epoch, following.header.first_sequence - 1)
    last = last_flushed(ends, epoch)
    return fmt.position(epoch, last) if last else 0


def _rewritten(before: Checkpoint | None, after: Checkpoint | None) -> bool:
    """Whether the retry ring may have been, as a rewriting covers the originals, and its copies begin a life."""
    old, new = (one.retry if one is not None else RingState() for one in (before, after))
    return old.watermark != new.watermark and old.next_ordinal != new.next_ordinal


def _newest(copies: Iterable[Copy]) -> Checkpoint | None:
    return max(copies, key=lambda copy: copy.generation).checkpoint
