"""What an opening makes of the bytes it finds. Pure: bytes in, a plan out; nothing is read, written or guessed.

1. Each slot is classified from its two header copies (`classify`): blank, live life, or damaged.
2. The slot size comes from the checkpoint or, without one, from the first header (`slot_bytes_of`).
3. `plan` orders the lives by ordinal, frees the ones that the durable watermark covers, and takes the next epoch:
   one above everything that any checkpoint copy or header has seen (I5).

It refuses: lives of two producers in one ring, an ordinal that stands twice. It never changes a damaged slot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, Copy


@dataclass(frozen=True, slots=True)
class SlotFound:
    """One slot as found: ``state`` is blank, live or damaged."""

    index: int
    state: str
    header: fmt.SlotHeader | None = None
    seal: fmt.Seal | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """A slot that may hold records still to deliver; ``seal`` is None when a crash left it open."""

    index: int
    header: fmt.SlotHeader
    seal: fmt.Seal | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the ring starts from."""

    producer_id: int | None
    epoch: int
    watermark: int
    moved: int
    next_ordinal: int
    lives: list[Life] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)  # index, salt of the life before
    damaged: list[int] = field(default_factory=list)


def classify(index: int, head: bytes, end: bytes) -> SlotFound:
    """One slot from the reserved bytes of its two ends.

    Both header copies are stored before the life's first frame, the one at the end first. So the newer valid copy
    counts, and a slot with one zero and one torn copy never held a frame: it is blank.
    """
    headers = [fmt.unpack_slot_header(part) for part in (head, end)]
    valid = [header for header in headers if header is not None and fmt.header_fits(header)]
    if not valid:
        zero = [not any(part[: fmt.HEADER_BYTES]) for part in (head, end)]
        return SlotFound(index, "blank" if any(zero) else "damaged")
    header = max(valid, key=lambda found: found.ordinal)
    seals = [fmt.unpack_seal(part[fmt.SEAL_OFFSET :], header.salt) for part in (head, end)]
    fitting = (seal for seal in seals if seal is not None and fmt.seal_fits(seal, header))
    return SlotFound(index, "live", header, next(fitting, None))


def slot_bytes_of(copies: Iterable[Copy], headers: Iterable[fmt.SlotHeader | None], default: int) -> int:
    """The stored slot size, which wins over the option; ``default`` for an empty directory."""
    for copy in copies:
        if copy.checkpoint is not None and fmt.possible_slot_bytes(copy.checkpoint.slot_bytes):
            return copy.checkpoint.slot_bytes
    for header in headers:
        if header is not None and fmt.possible_slot_bytes(header.slot_bytes):
            return header.slot_bytes
    return default


def last_position(life: Life) -> int | None:
    """The position of a life's last frame; None when a crash left it unsealed."""
    if life.seal is None:
        return None
    return fmt.position(life.header.epoch, life.seal.last_sequence)


def plan(copies: Sequence[Copy], slots: Iterable[SlotFound]) -> Plan:
    """The state to start from.

    Raises:
        WalCorruptError: the ring mixes two producers or two slot sizes, or an ordinal stands twice: files were
            copied together.

    """
    slots = list(slots)
    newest = max(copies, key=lambda copy: copy.generation).checkpoint
    lives = sorted(
        (Life(slot.index, slot.header, slot.seal) for slot in slots if slot.header is not None),
        key=lambda life: life.header.ordinal,
    )
    producer_id = _producer_id(newest, lives)
    _check_one_size(copies, lives)
    epochs = [copy.checkpoint.epoch for copy in copies if copy.checkpoint is not None]
    epochs += [life.header.epoch for life in lives]
    watermark = newest.watermark if newest is not None else 0
    moved = newest.moved if newest is not None else 0
    free, live = [], []
    for life in lives:
        if _covered(life, max(watermark, moved)):
            free.append((life.index, life.header.salt))
        else:
            live.append(life)
    free += [(slot.index, 0) for slot in slots if slot.state == "blank"]
    return Plan(
        producer_id=producer_id,
        epoch=max(epochs, default=0) + 1,
        watermark=watermark,
        moved=moved,
        next_ordinal=max((life.header.ordinal for life in lives), default=0) + 1,
        lives=live,
        free=free,
        damaged=[slot.index for slot in slots if slot.state == "damaged"],
    )


def _covered(life: Life, durable: int) -> bool:
    """I1: only a durable watermark (or P) over its last position frees a slot."""
    last = last_position(life)
    return last is not None and last <= durable


def _producer_id(newest: Checkpoint | None, lives: Sequence[Life]) -> int | None:
    owners = {life.header.producer_id for life in lives}
    if newest is not None:
        owners.add(newest.producer_id)
    if len(owners) > 1:
        message = "the directory mixes files of several producers: restore each from its own copy"
        raise WalCorruptError(f"{message} producers={len(owners)}")
    ordinals = [life.header.ordinal for life in lives]
    if len(set(ordinals)) != len(ordinals):
        message = "the ring holds one slot twice: it was copied together from several states"
        raise WalCorruptError(message)
    return next(iter(owners), None)


def _check_one_size(copies: Iterable[Copy], lives: Iterable[Life]) -> None:
    sizes = {life.header.slot_bytes for life in lives}
    sizes |= {copy.checkpoint.slot_bytes for copy in copies if copy.checkpoint is not None}
    if len(sizes) > 1:
        message = "the directory mixes files with slots of several sizes: restore each from its own copy"
        raise WalCorruptError(f"{message} slot_bytes={sorted(sizes)}")
