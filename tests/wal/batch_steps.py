"""The half of `model.Machine` with batches: each is written down before it is sent, and found by the next life."""

from tests.wal.ledger import LANES, from_lane
from tests.wal.machine import LIMITS, NEVER, POWER, SECTORS, Core, step

MOMENTS = [(file, when) for file in ("dead", "lanes") for when in ("before", "after")]


class BatchSteps(Core):
    """Batches are entered, acknowledged or not, settled as a whole, parted with, and taken up again."""

    @step(lambda m: any(map(m.life.sendable, LANES)), lane=LANES, count=LIMITS)
    def enter(self, lane: bytes, count: int) -> None:
        """A batch of this lane, or of the next one that has anything to send, is written down."""
        life = self.life
        name = next(each for each in from_lane(lane) if life.sendable(each))
        positions = life.sendable(name)[:count]
        life.batches.enter(name, positions, [life.places[position] for position in positions])

    @step(lambda m: m.life.batches.in_flight, lane=LANES, lost=[False, False, True])
    def acknowledge(self, lane: bytes, lost: bool) -> None:
        """The broker has the batch of this lane, or of the next one; the answer comes, or is lost."""
        self._acknowledge(self._in_flight(lane), lost=lost)

    def _acknowledge(self, name: bytes, *, lost: bool = False) -> None:
        self.life.delivered |= set(self.life.batches.acknowledge(name, lost=lost))

    def _in_flight(self, lane: bytes) -> bytes:
        return next(each for each in from_lane(lane) if each in self.life.batches.in_flight)

    @step(lambda m: m.life.batches.unanswered, lane=LANES)
    def part_with(self, lane: bytes) -> None:
        """The batch is not sent any more as it was written down."""
        unanswered = self.life.batches.unanswered
        self.life.batches.part_with(next(each for each in from_lane(lane) if each in unanswered))

    @step(lambda m: m.life.batches.in_flight, lane=LANES, part=[0.1, 0.5, 0.9], power=POWER, sector=SECTORS)
    def die_while_settling(self, lane: bytes, part: float, power: int | None, sector: int) -> None:
        """The end comes when some of a batch is settled, from its first record on."""
        name = self._in_flight(lane)
        self._acknowledge(name)
        positions = self.life.batches.in_flight[name].positions
        self.life.settle(positions[: max(1, int(part * len(positions)))])
        self._end(power, sector, self._moved())

    @step(end=[*[NEVER] * 4, *MOMENTS], power=POWER, fails=["", "", "", "dead", "lanes"], sector=SECTORS)
    def write_all(self, end: tuple[str, str], power: int | None, fails: str, sector: int) -> None:
        """A checkpoint, with an end or a failure as the dead ring or the lanes are flushed."""
        if fails == "lanes" and not self.life.directory.lanes._stored:  # then they are not
            fails = ""
        self.write_checkpoint(traffic=False, end=end, power=power, fails=fails, sector=sector)

    def finish(self, name: bytes) -> None:
        """What the lane has in flight is over."""
        if name in self.life.batches.in_flight:
            self._acknowledge(name)
            self.life.settle(self.life.batches.in_flight[name].positions)
