"""A machine that does to the real log whatever can happen to it, in any order, beside the dictionary in `ledger`.

Signals and threads apart (`test_signals` has those): it appends, reads, judges suspects, delivers, settles, flushes,
checkpoints, compacts, rewrites the retry ring, recycles, grows, shrinks, ends cleanly, dies, loses its power and fails
to flush, also in the middle of a checkpoint and of a move and while publishing goes on. Records are refused for good
and become letters (`letter_steps`), and batches are written down before they are sent (`batch_steps`); or all goes in
transactions (`commit_steps`). Pages that a failed flush has called clean leave memory, at any moment (`evict_steps`).

What is left is adopted, too, in a step of its own: found, locked, opened under the ids that it has, and let go by the
product's own code. Delivery is played there as in any other life (`played`): the real one needs Kafka, an event loop
and time that passes. So does what decides when whose turn it is, and ends one (`orphans`, `adoption`): these have tests
of their own, beside a real Kafka.

Each step says which values its arguments may have. Hypothesis takes them (`RingMachine`), and so does a driver of our
own that is faster (`tests.prove.model`).
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiorecover.errors import WalError, WalFullError
from aiorecover.wal import format as fmt
from aiorecover.wal.moving import Move
from aiorecover.wal.recovery import classify
from tests.wal.batch_steps import BatchSteps
from tests.wal.commit_steps import CommitSteps
from tests.wal.evict_steps import EvictSteps
from tests.wal.ledger import LANES, demand
from tests.wal.letter_steps import LetterSteps
from tests.wal.machine import FAILURES, LIMITS, MOMENTS, NEVER, POWER, SECTORS, SEEDS, STEPS, slot_of, step
from tests.wal.rig import SLOT

__all__ = ["STEPS", "Machine", "RingMachine"]


class Machine(LetterSteps, BatchSteps, CommitSteps, EvictSteps):
    """The real thing and the ledger, step by step."""

    # -- compaction ------------------------------------------------------------------------------------------------

    @step(lambda m: m.life.movable())
    def begin_move(self) -> None:
        life = self.life
        life.move = Move(life.ring, life.retry, life.ring.live[0])
        life.directory.copies_from = life.move.copies_from

    @step(lambda m: m.life.move is not None and not m.life.in_doubt, limit=[1, 2, 7, 100])
    def step_move(self, limit: int) -> None:
        self._copy_some(limit)

    def _copy_some(self, limit: int) -> bool:
        """Whether all is copied."""
        life = self.life
        try:
            return life.move is not None and life.move.step(limit)
        except WalError as error:
            self._refused(error)
            life.abandon()
        return False

    @step(lambda m: m.life.move is not None and not m.life.in_doubt)
    def abandon_move(self) -> None:
        self.life.abandon()

    @step(
        lambda m: m.life.move is not None and not m.life.in_doubt,
        traffic=[False, True],
        end=[*[NEVER] * 12, *MOMENTS],
        power=POWER,
        fails=FAILURES,
        sector=SECTORS,
    )
    def make_move(self, traffic: bool, end: tuple[str, str], power: int | None, fails: str, sector: int) -> None:
        """Copy what is left, and make the move durable; the end may come at each step of that too."""
        life = self.life
        moving = life.move
        while moving is not None and not self._copy_some(100):
            moving = life.move
        if moving is None:
            return
        slot = moving.slot  # which may have been recycled meanwhile: then the oldest one is another
        self.pending = life.copied()
        life.batches.repoint()
        captured = life.directory.next_checkpoint(moved=slot.last_position, destination=self._destination())
        if self._write(captured, traffic, end, power, fails, sector):
            self.ledger.copied |= self.pending  # what was settled meanwhile has a copy all the same
            life.made()
            if life.batches.in_flight:
                self.recycle()  # as the compactor does at once: what goes along with a later copying is told by it
        elif life is self.life:
            life.in_doubt = True  # neither finished nor abandoned: nobody knows what the disk has
            return
        self.pending = set()

    # -- rewriting the retry ring ----------------------------------------------------------------------------------

    @step(lambda m: m.life.rewritable())
    def begin_rewriting(self) -> None:
        try:
            self.life.begin_rewriting()
        except WalError as error:
            self._refused(error)

    @step(lambda m: m.life.rewriting is not None and not m.life.in_doubt, limit=[1, 2, 7, 100])
    def step_rewriting(self, limit: int) -> None:
        self._rewrite_some(limit)

    def _rewrite_some(self, limit: int) -> bool:
        """Whether all is copied, or nothing will be any more."""
        life = self.life
        try:
            return life.rewriting is None or life.rewriting.step(limit)
        except WalError as error:
            self._refused(error)
            life.abandon()
        return True

    def _refused(self, error: WalError) -> None:
        allowed = isinstance(error, WalFullError) or self.life.poisoned
        demand(allowed, "a copy finds no room, or nothing is accepted", error)

    @step(lambda m: m.life.rewriting is not None and not m.life.in_doubt)
    def abandon_rewriting(self) -> None:
        self.life.abandon()

    @step(
        lambda m: m.life.rewriting is not None and not m.life.in_doubt,
        traffic=[False, True],
        end=[*[NEVER] * 12, *MOMENTS],
        power=POWER,
        fails=FAILURES,
        sector=SECTORS,
    )
    def make_rewriting(self, traffic: bool, end: tuple[str, str], power: int | None, fails: str, sector: int) -> None:
        """Copy what is left, and let the copies count instead; the end may come at each step of that too."""
        life = self.life
        while not self._rewrite_some(100):
            pass
        if life.rewriting is None:
            return
        life.batches.repoint()
        captured = life.directory.next_checkpoint(rewritten=life.rewriting.copies_from, destination=self._destination())
        if self._write(captured, traffic, end, power, fails, sector):
            life.rewrote()
        elif life is self.life:
            life.in_doubt = True

    # -- the end of a life -----------------------------------------------------------------------------------------

    @step(
        stopped=[False, True],
        power=POWER,
        sector=SECTORS,
        slot_bytes=[SLOT, SLOT, 2 * SLOT],
        name=["shop", "shop", None],
    )
    def end(self, stopped: bool, power: int | None, sector: int, slot_bytes: int, name: str | None) -> None:
        """The process stops or is killed, or the machine goes down; another one takes over, with its own options."""
        if stopped:
            self.life.directory.close()
        self._end(power, sector, self._moved(), slot_bytes, name)

    @step(
        lambda m: not m.life.poisoned,
        end=[*[NEVER] * 12, *MOMENTS],
        power=POWER,
        fails=FAILURES,
        sector=SECTORS,
        then=POWER,
    )
    def close(self, end: tuple[str, str], power: int | None, fails: str, sector: int, then: int | None) -> None:
        """A clean end, whatever was under way: nothing is in doubt, also when the machine goes down behind it."""
        directory = self.life.directory
        captured = directory.next_checkpoint(closed=True, destination=self._destination())
        if self._write(captured, traffic=False, end=end, power=power, fails=fails, sector=sector):
            directory.close()
            self._end(then, sector, {captured.moved}, clean=True)

    @step(
        stopped=[False, True],
        power=POWER,
        sector=SECTORS,
        limit=LIMITS,
        seed=SEEDS,
        drains=[False, True],
        lets_go=[False, True, True],
        then=POWER,
    )
    def adopt(
        self,
        stopped: bool,
        power: int | None,
        sector: int,
        limit: int,
        seed: int,
        drains: bool,
        lets_go: bool,
        then: int | None,
    ) -> None:
        """The owner is gone, and a neighbour has its turn: it delivers, publishes nothing, and lets go, or dies too.

        It finds, locks and opens what is left as a real one does (`neighbourhood`).
        """
        self.adopts = True
        self.end(stopped, power, sector, SLOT, "shop")
        self.adopts, adopted = False, self.adopted
        number = self.life.ring.sequence
        if drains:
            self.deliver_everything()
        else:
            self._deliver_some(limit, seed)
        demand(self.life.ring.sequence == number, "who adopts stores nothing of its own in the main ring")
        if lets_go:
            self.drained = drains and (then is None or not self.failed_flush)  # which may have lost the seal of a slot
            self.close(end=NEVER, power=None, fails="", sector=sector, then=then)
            self.drained = False
            demand(adopted is not None and adopted.look().free, "what is let go is free")
        else:
            self.end(False, then, sector, SLOT, "shop")

    def _deliver_some(self, limit: int, seed: int) -> None:
        life = self.life
        life.read_retry(limit)
        life.read(limit)
        for lane in LANES:
            life.deliver(life.deliverable(lane)[:limit])
        self.settle(seed, 0.5)

    @step(
        lambda m: m.life.rewriting is not None and not (m.life.in_doubt or m.life.poisoned),
        limit=[1, 2, 7, 100],
        abandoned=[False, True],
        end=[*[NEVER] * 12, *MOMENTS],
        power=POWER,
        fails=FAILURES,
        sector=SECTORS,
        then=POWER,
    )
    def close_while_rewriting(self, limit: int, abandoned: bool, **how: Any) -> None:
        """A clean end with copies that do not count: they are marked by who stops, or left to the next opening."""
        self._rewrite_some(limit)
        if abandoned:
            self.life.abandon()
        self.close(**how)

    # -- always ----------------------------------------------------------------------------------------------------

    @step(lambda m: not m.life.in_doubt)
    def deliver_everything(self) -> None:
        """What is settled is freed: nothing pins a slot for ever."""
        life = self.life
        self.leave()
        life.abandon()
        while life.read_retry(100):
            pass
        while life.read(100):
            pass
        for lane in sorted(life.stalled):
            life.again(lane)
        for lane in LANES:
            self._deliver_all(lane)
        life.settle(sorted(life.delivered))
        demand(not self.ledger.waiting(), "everything was given", self.ledger.waiting())
        self.ledger.check_kafka()
        life.read(1)
        life.read_retry(1)
        if life.poisoned:
            return
        self.captured = None
        self.recycle()  # of a move that was made: the watermark goes on behind it
        self.write_checkpoint(traffic=False, end=NEVER, power=None, fails="", sector=512)
        self.recycle()
        demand(len(life.ring.live) <= 1, "what is settled is freed", len(life.ring.live), life.ring.pending())
        demand(len(life.retry.live) <= 1, "what is settled is freed in the retry ring", len(life.retry.live))
        demand(life.ring.unread() == 0, "nothing is left to read", life.ring.unread())

    def _deliver_all(self, lane: bytes) -> None:
        """All that it has, the batch that is in flight first."""
        self.finish(lane)
        self.life.deliver(self.life.deliverable(lane))
        while refused := self.life.undelivered(lane):
            self.lay_to_rest(refused[0])
            self.life.deliver(self.life.deliverable(lane))

    def always(self) -> None:
        """What holds after each step."""
        super().always()
        life, ledger = self.life, self.ledger
        ring = life.ring
        here = sum(epoch == ring.epoch for epoch, _ in ledger.ahead)
        first = ring.live[0].first_position if ring.live else 1 << 63
        mine = (position for position in ledger.handed if life.places[position][0] is ring)  # else handed as a copy
        known = sum(fmt.position(*position) >= first for position in mine)
        counted = ring.pending() - known - here  # too much, where damage is met that was counted: `recount`
        demand(counted == 0 or (life.evicted and counted > 0), "I9: counts add up", ring.pending(), known, here)
        old = sum(life.places[p][0] is life.retry and p not in life.copies for p in ledger.handed)
        copies = old + len(life.copies) + len(life.copied()) + life.superfluous()
        demand(life.retry.pending() == copies, "I9: counts of the retry ring add up", life.retry.pending(), copies)
        ledger.check_position(life.directory.settled_up_to())
        demand(ring.failure is None or life.poisoned, "nothing is settled twice", ring.failure)
        ledger.check_watermark(ring.watermark(), "the watermark stays below what waits")
        ledger.check_checkpoint(self.completed)
        files = ((life.reader, life.disk.ring), (life.second, life.disk.ring), (life.retry_reader, life.disk.retry))
        for reader, file in files:
            slot = None if reader is None else slot_of(reader)
            if slot is None:
                continue
            start = slot.file_offset
            header = classify(0, file.read(start, 128), file.read(start + SLOT - 128, 128)).header
            demand(
                life.evicted or header == slot.header, "I1: a slot keeps its life while somebody stands in it", header
            )


def _rules() -> dict[str, Any]:
    """The steps as Hypothesis knows them."""
    rules: dict[str, Any] = {}
    decorated: Any = rule  # its types cannot say that the arguments come from a table
    for name, (function, values, when) in STEPS.items():
        arguments: Any = {key: st.sampled_from(choices) for key, choices in values.items()}
        rules[name] = precondition(when)(decorated(**arguments)(function))
    return {**rules, "holds": invariant()(lambda self: self.always())}


RingMachine: Any = type("RingMachine", (Machine, RuleBasedStateMachine), _rules())
"""`Machine` for Hypothesis, which makes its bad examples small."""
