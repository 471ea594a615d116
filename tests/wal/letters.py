"""The dead ring as a dictionary: which letters must be found there, which may be, and which never again."""

from dataclasses import dataclass, field

from aiorecover.wal import format as fmt
from tests.wal.ledger import demand
from tests.wal.rig import Position


@dataclass(frozen=True, slots=True)
class Letter:
    """``record``: the position of what Kafka would not take."""

    record: Position
    payload: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a flush that begins now makes durable: these letters, and that these were purged."""

    stored: set[Position]
    purged: set[Position]


@dataclass
class Letters:
    """What was put into the dead ring, by its positions there, and what has to come of it."""

    stored: dict[Position, Letter] = field(default_factory=dict)  # and neither lost nor gone for good
    newest: Position = (0, 0)  # that was ever used
    mine: set[Position] = field(default_factory=set)  # stored in this life
    purged: set[Position] = field(default_factory=set)
    durable: set[Position] = field(default_factory=set)
    purged_durably: set[Position] = field(default_factory=set)
    doubtful: set[Position] = field(default_factory=set)  # a flush has failed since they were purged: none may help
    afloat: set[Position] = field(default_factory=set)  # where they are, it is in memory: the disk never had them
    ahead: dict[Position, bool] = field(default_factory=dict)  # not read yet in this life; True: must be there
    buried: set[Position] = field(default_factory=set)  # records whose letters a flush of this life has covered

    def store(self, position: Position, letter: Letter) -> None:
        """A letter was put into the ring."""
        demand(position > self.newest, "I5: positions of the dead ring go up", position)
        self.newest = position
        self.stored[position] = letter
        self.mine.add(position)

    def purge(self, position: Position) -> None:
        """Somebody took a letter out."""
        self.purged.add(position)

    @property
    def waiting(self) -> list[Position]:
        """What was read or stored in this life and is not purged, in order."""
        return sorted(self.stored.keys() - self.purged - self.ahead.keys())

    def of(self, record: Position) -> bool:
        """Whether there is a letter of a record, as far as they were read."""
        return any(self.stored[position].record == record for position in self.waiting)

    def take(self, position: Position, record: Position, payload: bytes) -> None:
        """The reader of the dead ring gave this."""
        demand(self.stored.get(position) == Letter(record, payload), "I2: nothing but letters is read", position)
        if position in self.mine:  # where its reader comes to them does not matter
            return
        demand(position in self.ahead, "a purged letter stays away; each comes once", position)
        while (first := next(iter(self.ahead))) < position:
            self._lose(first)
        if not self.ahead.pop(position):  # it has come through a power cut, or its purging has not
            self.durable |= {position} - self.afloat
            for known in (self.purged, self.purged_durably, self.doubtful):
                known.discard(position)

    def all_taken(self) -> None:
        """It says that there is nothing more."""
        for position in list(self.ahead):
            self._lose(position)

    def _lose(self, position: Position) -> None:
        demand(not self.ahead.pop(position), "every letter is found again", position)
        del self.stored[position]

    # -- what survives ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What a flush that begins now will make durable."""
        sure = self.stored.keys() - {position for position, must in self.ahead.items() if not must}
        return Snapshot(sure, self.purged & sure - self.doubtful)

    def synced(self, snapshot: Snapshot) -> None:
        """It has completed."""
        self.durable |= snapshot.stored & self.stored.keys()
        self.purged_durably |= snapshot.purged & self.purged
        self.buried |= {self.stored[position].record for position in self.waiting if position in snapshot.stored}

    def flush_failed(self) -> None:
        """The kernel calls lost pages clean: the settle words in them are not stored again."""
        self.doubtful |= self.purged - self.purged_durably

    def ended(self, *, lost_power: bool, clean: bool, evicted: bool) -> None:
        """A life is over; ``clean``: all of it was flushed by then, but for what a failed flush has left.

        ``evicted``: of that, pages have left memory; the disk has what a power cut leaves.
        """
        self.afloat = self.stored.keys() - self.durable if evicted else set() if lost_power else self.afloat
        lost_power = lost_power or evicted
        for position in self.stored.keys() & self.purged_durably:
            del self.stored[position]
        perhaps = {position for position, must in self.ahead.items() if not must}
        kept = self.stored if clean or not lost_power else self.durable
        again = self.stored if lost_power else self.stored.keys() - self.purged | perhaps
        self.ahead = {
            position: position in kept and position not in self.purged and position not in perhaps
            for position in sorted(again)
        }
        self.mine.clear()
        self.buried.clear()

    def opened(self, watermark: int) -> None:
        """The next life begins with what its checkpoint says: what that covers is not looked at."""
        for position in [position for position in self.stored if fmt.position(*position) <= watermark]:
            self.ahead.setdefault(position, False)
            self._lose(position)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def check_watermark(self, watermark: int, promise: str) -> None:
        """Nothing at or below ``watermark`` waits in the dead ring."""
        must = (position for position, must in self.ahead.items() if must)
        oldest = min([*self.waiting, *must], default=None)
        demand(oldest is None or fmt.position(*oldest) > watermark, promise, oldest)

    def check_checkpoint(self, watermark: int) -> None:
        """What a durable checkpoint says is durable itself."""
        perhaps = {position for position, must in self.ahead.items() if not must}
        for position in self.stored.keys() - self.purged_durably - self.doubtful - perhaps:
            demand(fmt.position(*position) > watermark, "I4: a checkpoint says only what was captured before", position)
