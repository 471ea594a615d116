"""What must be found after a power cut, and what may be: kept outside the library, record by record. Pure.

A `Ledger` begins with what the disk held when it was switched on, hears what one life said (`tests.power.workload`),
and judges what a recovery found at any point of that life's log.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.power.records import Name
from tests.power.recovery import Found, Position
from tests.power.words import Said

__all__ = ["Ledger"]

_EXAMPLES = 5


@dataclass
class Ledger:
    """One life, from power on to power cut."""

    held: dict[Position, Name] = field(default_factory=dict)
    """Unsettled on the disk when the power came on: found then, so to be found until it is delivered."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Point and epoch of each opening; those of earlier lives at point 0."""
    accepted: dict[Position, tuple[int, Name]] = field(default_factory=dict)
    """Point from which it is acknowledged, and what was published."""
    let_go: dict[Position, int] = field(default_factory=dict)
    """Point behind which it may be settled."""
    life: int = 0
    attempted: dict[int, int] = field(default_factory=dict)
    """Life to how many records it can have published at most."""
    complaints: list[str] = field(default_factory=list)
    """What must never be said."""

    def hear(self, said: Iterable[Said], publishers: int) -> None:
        """Take what the life said, in order; ``publishers``: so many records may be accepted and not told."""
        for word, point, numbers in said:
            if word == "O":
                self._opened(point, numbers[0])
            elif word == "A":
                self._accept(point, numbers)
            else:
                self.let_go.setdefault((numbers[0], numbers[1]), point)
        highest = max((name[1] for _, name in self.accepted.values() if name[0] == self.life), default=-1)
        self.attempted[self.life] = highest + 1 + publishers

    def _opened(self, point: int, epoch: int) -> None:
        used = max([before for _, before in self.epochs] + [position[0] for position in self.held], default=0)
        if epoch <= used:
            self.complaints.append(f"an epoch was given again: epoch={epoch} used={used}")
        self.epochs.append((point, epoch))

    def _accept(self, point: int, numbers: Sequence[int]) -> None:
        epoch, sequence, number = numbers
        position = (epoch, sequence)
        if position in self.accepted or position in self.held:
            self.complaints.append(f"a position was given twice: {epoch}/{sequence}")
        self.accepted[position] = (point, (self.life, number))

    def required(self, point: int) -> dict[Position, Name]:
        """What was acknowledged before the power went at ``point``, and cannot have been settled."""
        must = dict(self.held)
        must.update((position, name) for position, (since, name) in self.accepted.items() if since <= point)
        return {position: name for position, name in must.items() if self.let_go.get(position, point) >= point}

    def judge(self, found: Found, point: int) -> list[str]:
        """What is wrong with what was found behind a power cut at ``point``; empty: all is well."""
        required = self.required(point)
        there = dict(found.records)
        wrong = [
            _listed("lost", [position for position in required if position not in there]),
            _listed("reported missing although acknowledged", _covered(required, found.missing)),
            _listed("altered", [position for position, name in found.records if name is None]),
            _listed("invented", [position for position, name in found.records if not self._possible(position, name)]),
            _listed("twice", _repeated(name for _, name in found.records if name is not None)),
            _listed("out of order", _unordered([position for position, _ in found.records])),
            _listed("epoch used again", [epoch for epoch in self._epochs_before(point, found) if epoch >= found.epoch]),
            _listed("damaged slots", found.damaged_slots),
        ]
        return [complaint for complaint in wrong if complaint]

    def _possible(self, position: Position, name: Name | None) -> bool:
        if name is None:
            return True  # told as altered
        said = self.held.get(position) or (self.accepted[position][1] if position in self.accepted else None)
        if said is not None:
            return said == name
        return 0 <= name[1] < self.attempted.get(name[0], 0)

    def _epochs_before(self, point: int, found: Found) -> set[int]:
        opened = {epoch for since, epoch in self.epochs if since <= point}
        return opened | {position[0] for position, _ in found.records}

    def after(self, found: Found, point: int) -> "Ledger":
        """The ledger of the next life, which begins with the disk as it was found behind ``point``."""
        return Ledger(
            held={position: name for position, name in found.records if name is not None},
            epochs=[(0, epoch) for since, epoch in self.epochs if since <= point],
            life=self.life + 1,
            attempted=dict(self.attempted),
        )

    def acknowledged(self, point: int) -> int:
        """How many records of this life were acknowledged by then."""
        return sum(since <= point for since, _ in self.accepted.values())


def _covered(required: Iterable[Position], missing: Sequence[tuple[int, int, int]]) -> list[Position]:
    if not missing:
        return []
    return [
        position
        for position in required
        if any(epoch == position[0] and first <= position[1] <= last for epoch, first, last in missing)
    ]


def _repeated(names: Iterable[Name]) -> list[Name]:
    return [name for name, times in Counter(names).items() if times > 1]


def _unordered(positions: Sequence[Position]) -> list[Position]:
    return [later for earlier, later in itertools.pairwise(positions) if later <= earlier]


def _listed(kind: str, found: Sequence[object]) -> str:
    if not found:
        return ""
    more = f" and {len(found) - _EXAMPLES} more" if len(found) > _EXAMPLES else ""
    return f"{kind} ({len(found)}): {', '.join(map(str, found[:_EXAMPLES]))}{more}"
