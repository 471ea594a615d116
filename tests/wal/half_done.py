"""Lives that end before all that a power cut has left in doubt is read, judged and done again.

Any order of steps (`walk`) comes to that too rarely: a checkpoint has to come between a slot that is done again and the
rest of its lanes, and an end behind it.
"""

import random
from collections.abc import Iterator

from tests.wal.ledger import LANES
from tests.wal.machine import NEVER
from tests.wal.walk import Taken, run

__all__ = ["half_done"]

_WELL = {"traffic": False, "end": NEVER, "power": None, "fails": "", "sector": 512}
_FREE: list[Taken] = [("write_checkpoint", _WELL), ("recycle", {})]
_MOVE: list[Taken] = [("begin_move", {}), ("make_move", _WELL), ("recycle", {})]
_REWRITE: list[Taken] = [("begin_rewriting", {}), ("make_rewriting", _WELL), ("recycle", {})]
_LITTLE = (1, 1, 2, 3, 5, 8)  # frames that are read at a time
_SEEDS = 1 << 20


def half_done(seed: str) -> tuple[list[Taken], Exception | None]:
    """The steps of some lives, and what they find."""
    chance = random.Random(f"half done {seed}")
    steps = list(_lives(chance, moves=chance.random() < 0.5))
    return steps, run(steps)


def _lives(chance: random.Random, *, moves: bool) -> Iterator[Taken]:
    yield "append", {"size": chance.choice([300, 2100, 5000, 5000]), "count": 12}
    yield "append", {"size": 5000, "count": chance.randint(1, 12)}
    yield "sync", {"fails": False}
    yield from [("read", {"limit": 55})] * chance.randint(2, 9)
    yield from _deliver(chance, (1.0,))
    for number in range(chance.randint(2, 5)):
        if number or moves:
            for _ in range(chance.randint(1, 4)):
                yield from _live(chance, moves=moves)
        yield _end(chance, certain=number == 0)
    yield "deliver_everything", {}


def _live(chance: random.Random, *, moves: bool) -> Iterator[Taken]:
    """Something of what a life does."""
    if chance.random() < 0.7:
        yield from (("read", {"limit": chance.choice(_LITTLE)}) for _ in range(chance.randint(1, 4)))
    if moves and chance.random() < 0.4:
        yield "read_retry", {"limit": chance.choice([1, 2, 5, 55])}
    if chance.random() < 0.8:
        yield from _deliver(chance, (0.5, 1.0, 1.0))
    if chance.random() < 0.4:
        yield from _FREE
    if chance.random() < 0.3:
        yield "write_back", {"seed": chance.randrange(_SEEDS)}
    if chance.random() < 0.15:
        yield "append", {"size": chance.choice([300, 2100, 5000]), "count": chance.randint(1, 4)}
    if moves:
        yield from _beside_a_stalled_lane(chance)


def _beside_a_stalled_lane(chance: random.Random) -> Iterator[Taken]:
    if chance.random() < 0.3:
        yield "stall", {"lane": chance.choice(LANES)}
    if chance.random() < 0.3:
        yield "catch_up", {"seed": chance.randrange(_SEEDS)}
    if chance.random() < 0.5:
        yield from _MOVE
    if chance.random() < 0.2:
        yield from _REWRITE


def _deliver(chance: random.Random, parts: tuple[float, ...]) -> Iterator[Taken]:
    yield from (("deliver", {"lane": lane, "part": chance.choice(parts)}) for lane in LANES)
    yield "settle", {"seed": chance.randrange(_SEEDS), "part": chance.choice(parts)}


def _end(chance: random.Random, *, certain: bool) -> Taken:
    """The process dies, or the power goes; ``certain``: the power."""
    power = None if not certain and chance.random() < 0.5 else chance.randrange(_SEEDS)
    return "end", {"stopped": False, "power": power, "sector": 512, "slot_bytes": 16_384, "name": "shop"}
