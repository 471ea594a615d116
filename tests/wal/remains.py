"""What is left of a directory in each combination of the recovery tables: real rings' bytes, and what befell them."""

from dataclasses import dataclass, field
from functools import cache

from msgspec.structs import replace

from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint
from aiorecover.wal.moved import DEAD, NO_PARTITION, RETRY, RING, pack_moved
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Suspicion
from tests.wal.memory import PAGE, FaultyFile
from tests.wal.rig import SLOT, Disk, Opened
from tests.wal.tables import Case

PER_SLOT = 5  # frames: settled, waiting, settled, waiting, waiting; all of one lane
MADE_IN_PART = 4  # of them
OLDER = list(range(1, PER_SLOT + 1))
"""Numbers of the records that the slot held in the life before."""

NOISE = b"\xee" * fmt.HEADER_BYTES
CUT = 30  # bytes of a header that was being stored

Frame = tuple[Slot, int]


def settled(number: int) -> bool:
    """Whether the record with this number is, of those that are not all."""
    return (number - 1) % PER_SLOT in {0, 2}


@dataclass
class Base:
    """What a process leaves behind that dies.

    ``slot``: the one that the case is about. ``newest`` and ``before``: an end of it in either life. ``frames``: of all
    slots.
    """

    files: dict[str, bytes]
    slot: Slot
    newest: bytes
    before: bytes
    frames: list[tuple[str, int, int]] = field(default_factory=list)  # ring, where its settle word stands, salt


def build(case: Case) -> Disk:
    """A slot before, if there is one; then the slot that the case is about; then what happened to both."""
    base = _left(
        case.ring,
        "beside" if case.beside else case.others,
        case.slot,
        case.moved,
        case.tail in {"sealed", "page"},
        case.words == "earlier",
    )
    files = {name: bytearray(content) for name, content in base.files.items()}
    if case.words != "present":
        _change_words(files, base, case.words)
    if case.slot == "holds":
        _change_tail(files[case.ring], base, case.tail)
    _change_ends(files[case.ring], base, case)
    _change_copies(files["checkpoint"], case)
    ring, checkpoint, retry, dead = (FaultyFile(name, bytes(files[name])) for name in (RING, "checkpoint", RETRY, DEAD))
    return Disk(ring, checkpoint, retry, dead, boots=1 if case.words == "present" else 2)


def payload(number: int) -> bytes:
    """Of the record with this number, in every ring."""
    return b"record %02d" % number


class _Life:
    """Of the process that leaves all this."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = Opened()
        self.directory = self.opened.directory
        self.rings = dict(zip((RING, RETRY, DEAD), self.directory.rings, strict=True))
        self.ring = self.rings[name]
        self.frames: list[tuple[str, Frame]] = []
        self.gone: list[tuple[str, Slot]] = []  # slots that have a new life, or were cut off
        if name != RING:
            self._append(RING, b"never moved")  # so that copies have other numbers than their records
            self._settle(RING, 1)
            seal(self.rings[RING])
            self.gone.append((RING, self.rings[RING].live[0]))

    def store(self, count: int = PER_SLOT, *, all_settled: bool = False) -> None:
        """Frames with the next numbers, and in the main ring the originals of those that are copies."""
        numbers = range(self.ring.sequence + 1, self.ring.sequence + 1 + count)
        for name in [RING, RETRY] if self.name == RETRY else [self.name]:
            for number in numbers:
                self._append(name, self._packed(name, number))
                if all_settled or settled(number):
                    self._settle(name, self.rings[name].sequence)
        if self.name == RETRY:
            seal(self.rings[RING])

    def make(self, *, gone: bool = True) -> None:
        """The move of what was copied; ``gone``: its originals."""
        if self.name == RETRY:
            self.write(self.directory.next_checkpoint(moved=self.rings[RING].last_position))
            self.gone += [(RING, self.rings[RING].live[-1])] if gone else []

    def write(self, checkpoint: Checkpoint) -> None:
        """In both copies."""
        for _ in range(2):
            self.directory.write_checkpoint(checkpoint)

    def _packed(self, name: str, number: int) -> bytes:
        if name == RING:
            return payload(number)
        position, nonce = fmt.position(self.ring.epoch, number + 1), fmt.nonce_of(self.ring.producer_id)
        return pack_moved(position, nonce, NO_PARTITION, payload(number))

    def _append(self, name: str, packed: bytes) -> None:
        place, sequence = self.rings[name].append(packed, None)
        self.frames.append((name, (self.rings[name].slot_of(sequence), place)))

    def _settle(self, name: str, sequence: int) -> None:
        slot, place = self.frames[-1][1]
        assert slot.ring is self.rings[name]
        self.rings[name].settle(slot, [place])


def seal(ring: Ring) -> None:
    """The slot that is written to is left."""
    ring._seal(ring.live[-1])


@cache
def _left(name: str, others: str, kind: str, moved: str, sealed: bool, earlier: bool) -> Base:
    life = _Life(name)
    ring = life.ring
    life.store(all_settled=True)
    life.make()
    seal(ring)
    older = ring.live[-1]
    life.gone.append((name, older))
    if others == "yes":
        life.store(all_settled=kind == "reused")
        life.make()
        seal(ring)
    if others == "beside":
        life.rings[DEAD].append(b"x" * 50, None)
    if kind == "reused":
        life.store(all_settled=True)
        life.make()
        seal(ring)
    elif kind == "holds":
        _store_what_is_held(life, moved)
    if others in {"yes", "elsewhere"} and name != RING and moved in {"", "made"}:
        life.rings[RING]._roll(0)  # a slot of the main ring that can be read: the originals stand in others, or did
    slot = ring.live[-1]
    if sealed and kind == "holds":
        seal(ring)
    captured = life.directory.next_checkpoint()
    if earlier:
        captured = replace(captured, epoch=2, suspect=Suspicion(fmt.position(1, fmt.SEQUENCE_MASK), 2, 2))
    life.write(captured)
    before = _front(life, older)
    newest = b""
    if kind != "holds":
        before = _front(life, slot)
        ring._roll(0)
        newest = _front(life, ring.live[-1])
        if kind == "reused":
            life.gone.append((name, ring.live[-1]))
        else:
            slot = ring.live[-1]
    return _base(life, slot, newest, before)


def _store_what_is_held(life: _Life, moved: str) -> None:
    ring, directory = life.ring, life.directory
    if moved == "in part":
        life.store(MADE_IN_PART)
        life.make()
        directory.copies_from = ring.last_position
        life.store(PER_SLOT - MADE_IN_PART)
    elif moved == "not made":
        directory.copies_from = ring.last_position
        life.store()
    else:
        life.store()
        life.make(gone=moved == "made")


def _front(life: _Life, slot: Slot) -> bytes:
    assert slot.map is not None
    return slot.map[: fmt.RESERVED]


def _base(life: _Life, slot: Slot, newest: bytes, before: bytes) -> Base:
    disk = life.opened.disk
    files = (disk.ring, disk.retry, disk.dead, disk.checkpoint)
    contents = {file.stored.name: bytearray(file.live()) for file in files}
    for name, gone in life.gone:
        contents[name][gone.file_offset : gone.file_offset + SLOT] = bytes(SLOT)
    frames = [(name, of.file_offset + place * fmt.WORD, of.salt) for name, (of, place) in life.frames]
    life.directory.close()
    return Base({name: bytes(content) for name, content in contents.items()}, slot, newest, before, frames)


# -- what happens to it --------------------------------------------------------------------------------------------


def _change_words(files: dict[str, bytearray], base: Base, words: str) -> None:
    for name, place, salt in base.frames:
        word = int.from_bytes(files[name][place : place + fmt.WORD], "little")
        if fmt.mark_of(word, salt) is not None:
            new = fmt.open_word(salt) if words == "lost" else fmt.done_word(salt, 2)
            files[name][place : place + fmt.WORD] = new.to_bytes(fmt.WORD, "little")


def _change_tail(content: bytearray, base: Base, tail: str) -> None:
    slot = base.slot
    inside = [place for _, place, salt in base.frames if salt == slot.salt]
    if tail in {"middle", "last"}:
        payload_at = inside[3 if tail == "middle" else 4] + fmt.WORD
        content[payload_at : payload_at + 3] = b"rot"
    elif tail == "torn":
        sequence = slot.ring.sequence + 1
        frame = fmt.FRAME.pack(500, fmt.frame_crc(b"t" * 500, slot.salt, sequence), sequence, slot.open_word)
        start = slot.file_offset + slot.tail
        content[start : start + len(frame) + 100] = frame + b"t" * 100
    elif tail == "page":
        content[slot.file_offset : slot.file_offset + PAGE] = bytes(PAGE)


def _change_ends(content: bytearray, base: Base, case: Case) -> None:
    front, end = base.slot.file_offset, base.slot.file_offset + SLOT - fmt.RESERVED
    torn = base.newest[:CUT].ljust(fmt.HEADER_BYTES, b"\0")
    changes = {
        "newest": base.newest,  # nothing, where it holds frames
        "before": base.before if case.slot == "holds" else b"",
        "zero": bytes(fmt.RESERVED),
        "damaged": NOISE if case.slot == "holds" else torn,
    }
    for place, state in zip((front, end), case.ends, strict=True):
        content[place : place + len(changes[state])] = changes[state]


def _change_copies(content: bytearray, case: Case) -> None:
    generations = [int.from_bytes(content[copy * COPY_BYTES + 16 :][:8], "little") for copy in (0, 1)]
    order = [0, 1]
    if case.checkpoint == "one":  # by age, not by place
        order.sort(key=lambda copy: -generations[copy])
    for copy, state in zip(order, case.copies, strict=True):
        start = copy * COPY_BYTES
        if state == "damaged":
            content[start + 40 : start + 42] = b"\xee\xee"
        elif state == "absent":
            content[start : start + COPY_BYTES] = bytes(COPY_BYTES if copy == 0 else 0)
