"""The half of `model.Machine` with the dead ring: records that Kafka will never take, and who takes them out again."""

import random

from aiorecover.errors import WalError, WalFullError
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import NO_PARTITION, pack_moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.stream import FIRST_PLACE
from tests.wal.ledger import LANES, demand, from_lane
from tests.wal.letters import Letter
from tests.wal.machine import NEVER, SEEDS, Core, step
from tests.wal.played import copy_of
from tests.wal.rig import Position, entries_of, missing, read

SHARE = 2  # slots of ten that the dead ring may have: a quarter


class LetterSteps(Core):
    """Letters are stored, flushed, listed, purged and requeued; `deliver` and `settle` deal with their records."""

    @step(lambda m: any(map(m.refusable, LANES)), lane=LANES, why=[0, 100, 900])
    def bury(self, lane: bytes, why: int) -> None:
        """Kafka will never take the next record of this lane, or of the next one that has any: it becomes a letter.

        ``why``: bytes of what Kafka has said.
        """
        position = self.life.undelivered(next(filter(self.refusable, from_lane(lane))))[0]
        self.ledger.refused.add(position)
        self._store(position, why)

    def refusable(self, lane: bytes) -> bool:
        """It is about to send something."""
        return self.life.goes_on(lane) and bool(self.life.undelivered(lane))

    def _store(self, record: Position, why: int = 0) -> bool:
        """Whether there is a letter now, of this life or found."""
        life = self.life
        dead = life.directory.dead
        if record[0] < dead.epoch:
            self.take_stock()
        if self.letters.of(record):
            return True
        payload = bytes(why) + self.ledger.records[record]
        letter = pack_moved(fmt.position(*record), 0, NO_PARTITION, payload)
        try:
            place, sequence = dead.append(letter, None)
        except WalFullError:
            full = len(dead.live) >= SHARE or (dead.live and (self.full or self.used_up))
            demand(full, "the dead ring has room for a slot, and up to its share", len(dead.live))
            return False
        except WalError:
            demand(life.poisoned, "no letter is refused without a reason")
            return False
        demand(not life.poisoned, "I7: nothing is accepted after a failed flush", sequence)
        demand(self.unallocated >= self.beyond, "the rings together stay within their limit", self.unallocated)
        position = dead.epoch, sequence
        self.letters.store(position, Letter(record, payload))
        life.letter_places[position] = dead.slot_of(sequence), place
        return True

    @property
    def used_up(self) -> bool:
        """The rings use all that they may have together."""
        quota = self.life.directory.dead.spares.quota
        return sum(holding.used for holding in quota.holdings()) >= quota.shares.slots

    @step()
    def take_stock(self) -> None:
        """Read what earlier lives have left, once."""
        life = self.life
        if life.knows_letters:
            return
        while (run := life.dead_reader.take(7)) is not None:
            for slot, place, sequence, letter in entries_of(run):
                position = slot.header.epoch, sequence
                self.letters.take(position, (letter.epoch, letter.sequence), bytes(letter.payload))
                life.letter_places[position] = slot, place
        self.letters.all_taken()
        life.dead_reader.close()
        life.knows_letters = True
        reported = missing(life.directory.dead)
        demand(self.powerless or not reported, "a dying process tears no hole in the dead ring", reported)
        there = set(self.letters.waiting) & set(reported)
        demand(not there, "only letters that are missing are reported as missing", there)

    @step(fails=[*[False] * 9, True])
    def sync_dead(self, fails: bool) -> None:
        if fails:
            self.life.disk.dead.stored.fail_syncs(1)
        snapshot = self.letters.snapshot()
        if not self._fails(self.life.directory.sync_dead, expected=fails):
            self.letters.synced(snapshot)

    @step()
    def list_letters(self) -> None:
        """Each that waits is seen once, in order."""
        self.take_stock()
        dead = self.life.directory.dead
        oldest = next(iter(dead.live), None)
        listed: list[Position] = []
        if oldest is not None:
            reader = Reader(dead, copy_of, primary=False).behind(oldest, FIRST_PLACE, oldest.header.first_sequence)
            listed = [(slot.header.epoch, sequence) for slot, _, sequence, _ in read(reader)]
            reader.close()
        waiting = self.letters.waiting
        demand(listed == waiting, "every letter that waits is listed, and nothing else", listed, waiting)

    @step(seed=SEEDS, part=[0.1, 0.5, 1.0], leaves=[False, True])
    def purge(self, seed: int, part: float, leaves: bool) -> None:
        """Some are taken out; ``leaves``: also of the slot that is written to, if nothing waits in it then."""
        self.take_stock()
        waiting = self.letters.waiting
        for position in random.Random(seed).sample(waiting, round(part * len(waiting))):
            self._take_out(position)
        if leaves:
            self.life.directory.dead.leave()

    def _take_out(self, position: Position) -> None:
        slot, place = self.life.letter_places[position]
        self.life.directory.dead.settle(slot, [place])
        self.letters.purge(position)

    @step(lambda m: m.letters.waiting and not m.drained, seed=SEEDS)
    def requeue(self, seed: int) -> None:
        """The record is published once more, and durably, before its letter goes."""
        self.take_stock()
        gone = [position for position in self.letters.waiting if self._is_over(self.letters.stored[position].record)]
        if not gone:
            return
        position = random.Random(seed).choice(gone)
        record, ring = self.ledger.records[self.letters.stored[position].record], self.life.ring
        try:
            _, sequence = ring.append(record, record)
        except WalError as error:
            demand(isinstance(error, WalFullError) or self.life.poisoned, "nothing is refused without a reason", error)
            return
        self.ledger.accept((ring.epoch, sequence), record)
        self.sync(fails=False)
        self._take_out(position)

    def _is_over(self, record: Position) -> bool:
        return record not in self.ledger.handed and record not in self.ledger.ahead

    def lay_to_rest(self, position: Position) -> None:
        """A refused record is dealt with: by a letter, for which somebody makes room if there is none.

        Where nothing is accepted any more, Kafka takes it after all.
        """
        if not self._store(position) and not self.life.poisoned:
            self.purge(seed=0, part=1.0, leaves=True)
            self.captured = None
            self.write_checkpoint(traffic=False, end=NEVER, power=None, fails="", sector=512)
            self.recycle()
            demand(self._store(position) or self.full, "once letters are purged there is room for others")
        if self.letters.of(position) and not self.life.poisoned:
            self.sync_dead(fails=False)
        if position not in self.letters.buried:
            self.ledger.accept_late(position)

    @step(lambda m: not m.life.poisoned and not m.life.in_doubt)
    def purge_everything(self) -> None:
        """What is purged is freed."""
        self.purge(seed=0, part=1.0, leaves=True)
        self.captured = None
        self.write_checkpoint(traffic=False, end=NEVER, power=None, fails="", sector=512)
        self.recycle()
        demand(not self.life.directory.dead.live, "what is purged is freed", self.life.directory.dead.live)

    def always(self) -> None:
        """What holds after each step."""
        super().always()
        dead, letters = self.life.directory.dead, self.letters
        demand(dead.pending() == len(letters.waiting), "I9: counts of the dead ring add up", dead.pending())
        letters.check_watermark(dead.watermark(), "the watermark of the dead ring stays below what waits")
        letters.check_checkpoint(self.life.directory.checkpoint.dead.watermark)
