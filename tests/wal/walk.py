"""Walks of `model.Machine`: steps chosen by a seed, run without Hypothesis, and made small when they find something."""

import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from tests.wal import batch_steps, commit_steps, evict_steps, letter_steps, machine, model
from tests.wal.model import STEPS, Machine

Taken = tuple[str, dict[str, Any]]
"""The name of a step and its arguments."""

LENGTH = 80  # steps: long enough for several lives, short enough to be made small
SMALLEST_TRIES = 2000  # runs to make a bad walk smaller: some seconds
SHORT_LIVES: dict[str, float] = {
    "append": 3,
    "read": 3,
    "deliver": 4,
    "settle": 3,
    "recycle": 2,
    "begin_move": 3,
    "end": 2,
}
LONG_LIVES: dict[str, float] = {  # so that a slot is moved, and the retry ring rewritten
    "append": 5,
    "read": 5,
    "deliver": 4,
    "settle": 3,
    "recycle": 2,
    "begin_move": 12,
    "make_move": 5,
    "begin_rewriting": 10,
    "make_rewriting": 4,
    "close_while_rewriting": 4,
    "deliver_everything": 0.5,
    "close": 0.5,
}
DYING_LIVES: dict[str, float] = {  # so that the next end comes before the last one is dealt with
    **dict.fromkeys(STEPS, 0.05),
    "append": 2,
    "sync": 1.5,
    "read": 3,
    "deliver": 3,
    "settle": 3,
    "end": 2.5,
    "deliver_everything": 1,
}
REFUSED_LIVES: dict[str, float] = {  # so that the dead ring is full, and freed
    **dict.fromkeys(STEPS, 0.2),
    "append": 3,
    "read": 2,
    "settle": 2,
    "bury": 6,
    "sync_dead": 2,
    "purge": 1,
    "requeue": 1,
    "list_letters": 0.5,
    "write_all": 0.5,
    "recycle": 1,
    "end": 1,
}
SENT_LIVES: dict[str, float] = {  # so that batches are in flight when a life ends, and while slots are moved
    **dict.fromkeys(STEPS, 0.15),
    "append": 5,
    "read": 3,
    "enter": 4,
    "acknowledge": 1.5,
    "settle": 2,
    "stall": 0.5,
    "begin_move": 12,
    "make_move": 3,
    "begin_rewriting": 8,
    "make_rewriting": 2,
    "recycle": 1,
    "end": 1,
    "die_while_settling": 0.5,
}
COMMITTED_LIVES: dict[str, float] = {
    "append": 3,
    "read": 4,
    "commit": 4,
    "settle": 2,
    "remember": 4,
    "end": 0.5,
    "close": 0.3,
    "commit_everything": 0.3,
}
EVICTING_LIVES: dict[str, float] = {  # so that flushes fail, and pages go before and behind the next opening
    **dict.fromkeys(STEPS, 0.1),
    "append": 3,
    "read": 3,
    "deliver": 2,
    "enter": 2,
    "acknowledge": 1.5,
    "settle": 3,
    "write_checkpoint": 1,
    "sync": 0.5,
    "recycle": 1,
    "begin_move": 3,
    "make_move": 1,
    "begin_rewriting": 3,
    "make_rewriting": 1,
    "fail_checkpoint": 1.2,
    "evict": 1,
    "evict_and_die": 0.7,
    "end": 0.7,
    "deliver_everything": 0.5,
}
FOLLOWS = {"read": "deliver", "deliver": "settle"}  # what a dispatcher does next
FOLLOWS_ALL = {"read": "enter", "acknowledge": "settle", "deliver": "settle"}
FOLLOWING = 0.5  # how often it does so at once


def _steps_of(*modules: ModuleType) -> list[str]:
    return [name for name, (function, _, _) in STEPS.items() if function.__module__ in {m.__name__ for m in modules}]


PLAIN = _steps_of(machine, model)
"""The steps of the main and the retry ring."""
ALL = _steps_of(machine, letter_steps, batch_steps, model)
EVICTING = _steps_of(machine, letter_steps, batch_steps, model, evict_steps)
NOT_IN_TRANSACTIONS = {"deliver", "deliver_everything", "adopt", "stall", "begin_move", "begin_rewriting"}
IN_TRANSACTIONS = [name for name in _steps_of(machine, model, commit_steps) if name not in NOT_IN_TRANSACTIONS]
KINDS = (SHORT_LIVES, LONG_LIVES, LONG_LIVES, DYING_LIVES)
ALL_KINDS = (REFUSED_LIVES, SENT_LIVES, SENT_LIVES, DYING_LIVES)


def walk(seed: object, length: int = LENGTH) -> tuple[list[Taken], Exception | None]:
    """Take so many steps of `PLAIN`; those that were taken, and what the last one found."""
    return _walk(random.Random(f"{seed}"), KINDS, FOLLOWS, PLAIN, length)


def walk_all(seed: object, length: int = LENGTH) -> tuple[list[Taken], Exception | None]:
    """The same with the steps of the dead ring and of batches."""
    return _walk(random.Random(f"all {seed}"), ALL_KINDS, FOLLOWS_ALL, ALL, length)


def walk_in_transactions(seed: object, length: int = LENGTH) -> tuple[list[Taken], Exception | None]:
    """The same where nothing is moved, and all goes in transactions."""
    chance = random.Random(f"in transactions {seed}")
    return _walk(chance, [COMMITTED_LIVES], {"read": "commit"}, IN_TRANSACTIONS, length, transactions=True)


def walk_evicting(seed: object, length: int = LENGTH) -> tuple[list[Taken], Exception | None]:
    """The steps of `walk_all`, where flushes fail, and pages that they called clean leave memory."""
    return _walk(random.Random(f"evicting {seed}"), [EVICTING_LIVES], FOLLOWS_ALL, EVICTING, length)


def _walk(
    chance: random.Random,
    kinds: Sequence[dict[str, float]],
    follows: dict[str, str],
    names: list[str],
    length: int,
    *,
    transactions: bool = False,
) -> tuple[list[Taken], Exception | None]:
    likely = chance.choice(kinds)
    weights = [likely.get(name, 1) for name in names]
    taken: list[Taken] = []

    def choices(played: Machine) -> Iterator[Taken]:
        while len(taken) < length:
            name = follows.get(taken[-1][0]) if taken and chance.random() < FOLLOWING else None
            name = name or chance.choices(names, weights)[0]
            _, values, when = STEPS[name]
            if when(played):
                taken.append((name, {key: chance.choice(options) for key, options in values.items()}))
                yield taken[-1]

    return taken, _run(choices, transactions=transactions)


def run(steps: Iterable[Taken]) -> Exception | None:
    """Take these steps, without those that cannot happen where they stand; what they find."""
    steps = list(steps)
    transactions = any(STEPS[name][0].__module__ == commit_steps.__name__ for name, _ in steps)
    return _run(lambda played: (taken for taken in steps if STEPS[taken[0]][2](played)), transactions=transactions)


def _run(steps: Callable[[Machine], Iterable[Taken]], *, transactions: bool) -> Exception | None:
    with _repeatable():
        played = Machine(transactions=transactions)
        try:
            for name, arguments in steps(played):
                STEPS[name][0](played, **arguments)
                played.always()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            return error
        finally:
            played.teardown()
    return None


@contextmanager
def _repeatable() -> Iterator[None]:
    """Salts and producer ids that are the same each time."""
    with mock.patch.object(secrets, "randbits", random.Random(1).getrandbits):
        yield


def smallest(steps: Sequence[Taken]) -> list[Taken]:
    """Fewer steps that find the same: ever smaller pieces are left out, as long as that helps."""
    best, tries = list(steps), 0
    promise = _promise(run(best))
    piece = len(best)
    while piece and tries < SMALLEST_TRIES:
        at, before = 0, len(best)
        while at < len(best) and tries < SMALLEST_TRIES:
            shorter = best[:at] + best[at + piece :]
            tries += 1
            if _promise(run(shorter)) == promise:
                best = shorter
            else:
                at += piece
        piece = piece if piece == 1 and len(best) < before else piece // 2
    return best


def _promise(error: Exception | None) -> str:
    """What was broken, without the details."""
    return f"{type(error).__name__} {str(error).split('(')[0].split('[')[0][:40]}"
