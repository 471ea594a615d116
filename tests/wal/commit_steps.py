"""The part of `model.Machine` where all goes in transactions: the position that Kafka keeps decides what is settled.

Only a machine that was made for it takes these steps, and then no others that deliver (`walk.walk_in_transactions`).
"""

from aiorecover.delivery.committed import Committed, covered_by, dispatched, opened_by, owner_of, read_by, to_commit
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Destination, Transactional
from tests.wal.ledger import demand
from tests.wal.machine import NEVER, POWER, SECTORS, Core, step
from tests.wal.rig import SLOT, Disk, Position


class CommitSteps(Core):
    """Runs of the ring are committed with their position, and settled after that, by this life or by a later one."""

    def __init__(self, *, transactions: bool = False) -> None:
        self.transactions = transactions
        self.committed: Committed | None = None  # by Kafka
        self.known = Transactional()  # to this life
        self.remembered = False  # this life has read the position, and a checkpoint says so
        self.read_in = 0  # epoch of the last one that has
        super().__init__()

    def _take_over(self, disk: Disk, *more: object, **known: object) -> None:
        super()._take_over(disk, *more, **known)  # type: ignore[arg-type]
        if not self.transactions:
            return
        checkpoint = self.life.directory.checkpoint
        before = checkpoint.destination.transactional or Transactional()
        demand(before.read_in >= self.read_in, "what a checkpoint says of the position stays", before, self.read_in)
        self.known = opened_by(before, owner_of(checkpoint.producer_id, checkpoint.epoch))
        self.life.covered = covered_by(self.committed, self.known)
        position = 0 if self.committed is None else self.committed.position
        demand(
            self.life.covered == position, "a directory knows what of its own is committed", self.committed, self.known
        )
        self.life.in_transactions, self.remembered = True, False

    def _destination(self) -> Destination:
        destination = super()._destination()
        if not self.transactions:
            return destination
        return Destination(name="shop", cluster_id=destination.cluster_id, transactional=self.known)

    @step(lambda m: m.transactions and not m.remembered and not m.life.poisoned)
    def remember(self) -> None:
        """That this life has read the position is durable before it commits anything."""
        self.known = read_by(self.known, self.committed, self.life.ring.epoch)
        checkpoint = self.life.directory.next_checkpoint(destination=self._destination())
        self._write(checkpoint, traffic=False, end=NEVER, power=None, fails="", sector=512)
        self.remembered, self.read_in = True, self.life.ring.epoch

    @step(lambda m: m.committable, part=[0.1, 0.5, 1.0])
    def commit(self, part: float) -> None:
        """A run of the ring is in Kafka, and its position."""
        self.life.delivered |= set(self._commit(part))

    @step(lambda m: m.committable, part=[0.1, 0.5, 1.0], power=POWER, sector=SECTORS)
    def commit_and_end(self, part: float, power: int | None, sector: int) -> None:
        """It is, and the end comes before anything of it is settled."""
        self._commit(part)
        self._end(power, sector, {0}, SLOT)

    @property
    def committable(self) -> bool:
        """Something was read that is not committed."""
        ready = self.transactions and self.remembered and not self.life.poisoned
        return ready and bool(self.ledger.handed - self.life.delivered)

    def _commit(self, part: float) -> list[Position]:
        waiting = sorted(self.ledger.handed - self.life.delivered)
        run = waiting[: int(part * len(waiting)) + 1]
        self.sync(fails=False)  # I11
        for position in run:
            self.ledger.commit(position)
        last = {epoch: max(fmt.position(*position) for position in run if position[0] == epoch) for epoch, _ in run}
        self.known = dispatched(self.known, last)
        self.committed = to_commit(fmt.position(*run[-1]), self.known)
        return run

    @step(lambda m: m.transactions)
    def commit_everything(self) -> None:
        """All is in Kafka once, and what is settled is freed."""
        life = self.life
        if not (self.remembered or life.poisoned):
            self.remember()
        while life.read(100):
            pass
        if self.committable:
            self.commit(1.0)
        life.settle(sorted(life.delivered))
        if life.poisoned:
            return
        demand(not self.ledger.waiting(), "everything was given", self.ledger.waiting())
        self.ledger.check_kafka()
        self.leave()
        self.captured = None
        self.write_checkpoint(traffic=False, end=NEVER, power=None, fails="", sector=512)
        self.recycle()
        demand(len(life.ring.live) <= 1, "what is settled is freed", len(life.ring.live))
