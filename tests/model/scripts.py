"""Short histories that reach interesting states: beginnings of random walks, and links of chains."""

from collections.abc import Callable

from tests.model.disk import Crash
from tests.model.kafka import PARTITIONS
from tests.model.life import Life

Script = Callable[[Life], None]


def deliver(life: Life, rounds: int = 6) -> None:
    for _ in range(rounds):
        life.assign()
        life.rewrite_on()
        life.flush()
        for partition in range(PARTITIONS):
            life.send(partition)


def send_all(life: Life, how: int = 0) -> None:
    for partition in range(PARTITIONS):
        life.send(partition, how)


def points(life: Life) -> None:
    """Three sync points of one batch; the second flush is under way as records come."""
    life.publish(0)
    life.flush()
    life.publish(2, note=1)
    life.flush(meanwhile=lambda: life.publish(0))
    life.publish(2)
    life.flush()


def die() -> None:
    raise Crash


def dies_flushing(life: Life) -> None:
    """A second sync point; death before it is durable."""
    life.publish(0)
    life.flush()
    life.publish(2, note=1)
    life.flush(meanwhile=die)


def sealing(life: Life) -> None:
    """A batch is sealed while a flush is under way."""
    life.publish(0)
    life.flush()
    life.publish(2)

    def meanwhile() -> None:
        life.publish(0)
        cursor = life.ring.lane("t", 0).published
        if cursor.index:
            cursor.seal()
        die()

    life.flush(meanwhile=meanwhile)


def segments(life: Life) -> None:
    """A lane over several segments, all of them used again."""
    for number in range(5):
        life.publish(0, size=2500)
        life.publish(2, note=number % 2)
        life.flush()
        deliver(life, 2)
        life.flush()
    life.publish(0)
    life.flush()


def filled(life: Life) -> None:
    """More batches than have objects, in two segments; the oldest cold."""
    for number in range(9):
        life.publish(0, size=600, note=number % 3 == 0)
    life.flush()
    life.tidy()
    life.flush()
    send_all(life)


def stored(life: Life, *, key: int = 0) -> None:
    """Batches of a lane in two segments, flushed."""
    unflushed(life, key=key)
    life.flush()


def unflushed(life: Life, *, key: int = 0) -> None:
    """Batches of a lane in two segments."""
    for _ in range(7):
        life.publish(key, size=900)


def settle(life: Life) -> None:
    for _ in range(7):
        life.send(0)


def settled(life: Life) -> None:
    """Batches of a lane in two segments, settled and not flushed since."""
    stored(life)
    settle(life)


def early(life: Life) -> None:
    """Settled before it was ever flushed, the next one of its segment flushed."""
    life.publish(0)
    life.send(0)
    life.flush()
    life.send(0)
    life.publish(2)
    life.flush()
    life.publish(0)
    life.flush()


def reuse(life: Life) -> None:
    """Segments of a lane settled, freed, and written by another lane."""
    settled(life)
    life.tidy()
    life.flush()
    life.flush()
    unflushed(life, key=1)


def reuse_at_once(life: Life) -> None:
    """Segments of a lane settled and written by another lane, no flush in between."""
    settled(life)
    life.tidy()
    unflushed(life, key=1)


def settled_within(life: Life) -> None:
    """Segments of a lane settled while a flush is under way, then another lane writes."""
    stored(life)

    def meanwhile() -> None:
        settle(life)
        life.tidy()

    life.publish(1)
    life.flush(meanwhile=meanwhile)
    life.publish(1, size=5000)


def refuse(life: Life) -> None:
    """A poisoned record in the middle of a batch: halved, dead letter, the rest goes on."""
    life.publish(0, note=2)
    life.publish(2, bad=True, note=1)
    life.publish(0)
    life.flush()
    life.send(0)
    life.rewrite_on()
    life.publish(2)
    deliver(life, 12)


def dead(life: Life) -> None:
    """A poisoned record, and a good one after it."""
    life.publish(0, bad=True)
    life.flush()
    life.send(0)
    life.publish(2)
    deliver(life, 4)


def goes_on(life: Life) -> None:
    """As `dead`; the good record is sent as soon as it may be."""
    life.publish(0, bad=True)
    life.flush()
    life.send(0)
    life.publish(2)
    for _ in range(2):
        life.rewrite_on()
        life.flush()
    for _ in range(3):
        life.rewrite_on()
        life.send(0)


def letters(life: Life) -> None:
    """Two dead letters, one of them thrown away."""
    for key in (0, 1):
        life.publish(key, bad=True)
    life.flush()
    deliver(life, 6)
    life.purge()


def unassigned(life: Life) -> None:
    """Records before the partitions are known, and after."""
    life.forget()
    for key in (0, 1, 2):
        life.publish(key, note=key)
    life.metadata()
    life.publish(0)
    deliver(life, 4)
    life.publish(0)
    life.publish(1)
    deliver(life, 2)


def halfway(life: Life) -> None:
    """A rewrite that is not finished."""
    life.forget()
    for key in (0, 1, 2):
        life.publish(key)
    life.flush()
    life.metadata()
    life.assign()
    for _ in range(life.rng.randint(1, 6)):
        life.rewrite_on()


def finishing(life: Life) -> None:
    """A second life: what a rewrite has left is rewritten."""
    life.metadata()
    for _ in range(3):
        life.assign()
        life.rewrite_on()
    deliver(life, 7)


def sends(life: Life) -> None:
    """A second life: no flush yet."""
    for _ in range(3):
        send_all(life)


def two(life: Life) -> None:
    """Both lanes: stored and the answer lost, then more."""
    life.publish(0)
    life.publish(1)
    life.flush()
    send_all(life, 1)
    life.publish(0)
    life.flush()
    send_all(life)
    send_all(life)
    life.publish(2)
    life.flush()


def following(life: Life) -> None:
    """A second life: what is settled is freed and used again for another lane."""
    life.flush()
    life.flush()
    stored(life, key=1)


def fails(life: Life) -> None:
    """A flush fails."""
    life.publish(0)
    life.flush()
    life.publish(2)
    life.publish(1)
    life.flush(fail=True)


def settled_fails(life: Life) -> None:
    """Settled, then a flush fails."""
    settled(life)
    life.publish(1)
    life.flush(fail=True)


def send_fails(life: Life) -> None:
    """A second life: all is sent, then a flush fails."""
    settle(life)
    life.publish(1)
    life.flush(fail=True)


def another_class_fails(life: Life) -> None:
    """A region is given another class of segments, then a flush fails."""
    life.publish(0, size=5000)
    life.flush()
    life.send(0)
    life.tidy()
    life.flush()
    life.flush()
    life.publish(0, size=9000)
    life.flush(fail=True)


def crowded(life: Life) -> None:
    """Checkpoints find no room; the segment with a source's position is used again."""
    life.files.no_room, life.world.crowded = 9, True
    life.publish(0, note=2)
    life.flush()
    life.send(0)
    life.tidy()
    life.flush()
    life.flush()
    life.publish(1)


def neighbours(life: Life) -> None:
    """A batch with two sync points, and one after it, each with notes."""
    life.publish(0, note=1)
    life.flush()
    for _ in range(4):
        life.publish(0, note=1)
    life.flush()


def source(life: Life) -> None:
    """A record with a position of its source, no flush since."""
    life.publish(0, note=2)


def noted(life: Life) -> None:
    """The position of a source is noted while a flush is under way."""
    life.publish(1)
    life.flush(meanwhile=lambda: life.publish(0, note=2))
    life.flush()
    send_all(life)
    life.flush()


def mixed(life: Life) -> None:
    """Records too large for the small and the large class."""
    life.publish(0, size=5000)
    life.publish(0)
    life.publish(1, size=9000)
    life.publish(1)
    life.flush()
    send_all(life)
    send_all(life)
    life.flush()
    life.tidy(4)
    life.flush()
    life.tidy(4)


def overlap(life: Life) -> None:
    """A flush within a flush, where the package lets it."""
    life.publish(0)
    life.flush()
    life.publish(2)

    def meanwhile() -> None:
        life.publish(0)
        life.flush(meanwhile=die)

    life.flush(meanwhile=meanwhile)


def child(life: Life) -> None:
    """A child in an older segment than its parent; the parent's segment is used again."""
    life.publish(0, bad=True)
    life.publish(0)
    life.flush()
    life.send(0)
    for _ in range(5):
        life.rewrite_on()
        life.flush()
    life.forget()
    life.publish(0)
    life.publish(2)
    life.metadata()
    for _ in range(5):
        life.assign()
        life.rewrite_on()
        life.flush()
    life.ring.lane("t", -1).give_back()
    life.flush()
    life.flush()
    life.ring.lane("another topic", 0).published.open(0, 64, life.writer.next_sequence(), life.ring.epoch)


def published(life: Life) -> None:
    life.publish(1, note=2)
    life.flush()


HELPERS = ("deliver", "send_all", "die", "settle")
SCRIPTS: dict[str, Script] = {
    name: one
    for name, one in list(globals().items())
    if callable(one) and one.__module__ == __name__ and name not in HELPERS
}
