"""Behind a failed flush pages leave memory, and what the disk has comes back: the log keeps its promises all the same.

Each rule about that is taken away in turn, and the model, led there, finds that it is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aiorecover.delivery.resume import _Judge
from aiorecover.wal import opening
from aiorecover.wal.checkpoint import CheckpointFile
from aiorecover.wal.recovery import Plan
from tests.wal import machine
from tests.wal.ledger import LANES, ViolationError
from tests.wal.machine import NEVER
from tests.wal.planted import Fault, Patch
from tests.wal.played import Played
from tests.wal.test_model_faults import DEATH
from tests.wal.walk import Taken, run, smallest, walk_evicting

WALKS = 12
SEEDS = range(300)  # at most; one of the first shows it
FEW = range(4)
WELL = {"traffic": False, "end": NEVER, "power": None, "fails": "", "sector": 512}
CHECKPOINT: Taken = ("write_checkpoint", WELL)
READ: Taken = ("read", {"limit": 55})
SETTLE: Taken = ("settle", {"seed": 0, "part": 1.0})
EVERYTHING: Taken = ("deliver_everything", {})


def append(size: int, count: int) -> Taken:
    return "append", {"size": size, "count": count}


def fail(file: str) -> Taken:
    return "fail_checkpoint", {"file": file, "traffic": False}


def evict(seed: int) -> Taken:
    return "evict", {"seed": seed}


def test_whatever_a_failed_flush_covered_may_leave_memory() -> None:
    for number in range(WALKS):
        taken, error = walk_evicting(f"ci/{number}")
        assert error is None, (number, error, smallest(taken))


def test_a_slot_whose_life_before_came_back_and_lost_its_seal_keeps_no_directory_closed() -> None:
    """Who has read a slot to its end seals it, though what stands there by then may be the life before."""
    for seed in FEW:
        used_again = [append(14_000, 7), EVERYTHING, append(1200, 3), DEATH]
        assert run([*used_again, fail("ring"), evict(seed), READ, DEATH, READ, DEATH]) is None, seed


# -- the limitation -------------------------------------------------------------------------------------------------


def test_what_an_earlier_life_settled_may_come_again_where_the_first_flush_fails(monkeypatch: Patch) -> None:
    """In the very life whose flush it was, and behind newer records of its lane; the model allows no more than that."""
    settled: list[Taken] = [append(1, 10), ("write_checkpoint", WELL | {"traffic": True}), DEATH]
    failed: Taken = ("fail_checkpoint", {"file": "ring", "traffic": True})
    lives = [[*settled, failed, evict(seed), EVERYTHING] for seed in FEW]
    assert not any(map(run, lives))
    monkeypatch.setattr(Played, "unread", lambda _: set())
    assert "what is settled stays settled" in str([run(life) for life in lives])
    flush: Taken = ("sync", {"fails": False})
    assert not any(run([*settled, flush, failed, evict(seed), EVERYTHING]) for seed in FEW)


# -- the rules, taken away -------------------------------------------------------------------------------------------


def pages_are_not_stored_again(patch: Patch) -> None:
    patch.setattr(opening, "_rewrite", lambda *_: None)


def settle_words_are_not_stored_again(patch: Patch) -> None:
    rewrite = opening._rewrite

    def forgetful(found: Plan, *rest: Any) -> None:
        newest = found.newest and msgspec.structs.replace(found.newest, poisoned=False)
        rewrite(replace(found, newest=newest), *rest)

    patch.setattr(opening, "_rewrite", forgetful)


def no_word_is_left(patch: Patch) -> None:
    patch.setattr(CheckpointFile, "leave_word", lambda *_: None)


def lanes_go_on_with_what_they_find(patch: Patch) -> None:
    patch.setattr(_Judge, "_may_be_older_than_the_last", lambda *_: False)


def flushed_by_the_next_life(seed: int) -> list[Taken]:
    return [append(1200, 6), fail("ring"), DEATH, READ, ("sync", {"fails": False}), evict(seed), DEATH, EVERYTHING]


def settled_before_the_failure(seed: int) -> list[Taken]:
    delivered: list[Taken] = [("deliver", {"lane": lane, "part": 1.0}) for lane in LANES]
    return [append(1200, 12), CHECKPOINT, READ, *delivered, SETTLE, fail("ring"), evict(seed), DEATH, EVERYTHING]


def believed_by_the_next_life(seed: int) -> list[Taken]:
    """In slots that a flush has covered before."""
    delivered: list[Taken] = [("deliver", {"lane": lane, "part": 1.0}) for lane in LANES]
    settled = [append(5000, 12), CHECKPOINT, READ, *delivered, SETTLE, fail("ring"), DEATH]
    return [*settled, READ, append(1200, 8), READ, *delivered, SETTLE, evict(seed), DEATH, EVERYTHING]


def sent_before_the_failure(seed: int) -> list[Taken]:
    sent: list[Taken] = [("enter", {"lane": b"b", "count": 1}), ("acknowledge", {"lane": b"b", "lost": False}), SETTLE]
    return [append(5000, 12), READ, *sent, EVERYTHING, append(5000, 12), READ, *sent, fail("lanes"), evict(seed), DEATH]


Life = Callable[[int], list[Taken]]
RULES: dict[Fault, Life] = {
    pages_are_not_stored_again: flushed_by_the_next_life,
    settle_words_are_not_stored_again: believed_by_the_next_life,
    no_word_is_left: settled_before_the_failure,
    lanes_go_on_with_what_they_find: sent_before_the_failure,
}


@pytest.mark.parametrize(("fault", "life"), RULES.items(), ids=[fault.__name__ for fault in RULES])
def test_the_model_finds_that_a_rule_about_it_is_missing(fault: Fault, life: Life, monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "check_views", lambda *_: None)
    with monkeypatch.context() as patch:
        fault(patch)
        seed = next((seed for seed in SEEDS if isinstance(run(life(seed)), ViolationError)), None)
    assert seed is not None
    assert run(life(seed)) is None
