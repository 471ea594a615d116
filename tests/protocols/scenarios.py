"""The small cases: each protocol of the log in a few steps.

Records are named by their lane and number. Two of the size `HALF` fill a slot, one of the size `WHOLE` does.
"""

from functools import partial

from tests.protocols.explore import Scenario
from tests.protocols.world import WHOLE, World


def begin(world: World) -> None:
    world.open()
    world.append("a1", "b1")
    world.flush()
    world.append("a2")
    world.read()


def go_on(world: World) -> None:
    world.open()
    world.drain()
    world.append("a9")


def drain(world: World) -> None:
    world.open()
    world.drain()


# -- checkpoint ------------------------------------------------------------------------------------------------------


def checkpoint(world: World) -> None:
    """Delivery and publishing go on while the keeper flushes and writes."""
    world.open()
    world.given("a1")
    world.read()
    world.checkpoint(partial(world.deliver, "a1"), partial(world.append, "b1"))


def checkpoint_and_roll(world: World) -> None:
    """The record that is published meanwhile goes into a slot of its own."""
    world.open()
    world.given("a1", "b1")
    world.read()
    world.deliver("a1")
    world.checkpoint(partial(world.deliver, "b1"), partial(world.append, "a2"))


def checkpoints(world: World) -> None:
    """Several, one after the other: the copies alternate."""
    world.open()
    world.given("a1", "b1")
    world.read()
    for name in ("a1", "b1"):
        world.deliver(name)
        world.checkpoint()
    world.checkpoint()


# -- recycling -------------------------------------------------------------------------------------------------------


def recycle(world: World) -> None:
    """The oldest slot is freed while the checkpoint that covers it is on its way, and used again."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("a1", "b1")
    world.checkpoint(world.recycle, partial(world.append, "a3"))
    world.append("b3")


def recycle_at_once(world: World) -> None:
    """Somebody recycles before any checkpoint: nothing may be freed."""
    world.open()
    world.given("a1", "b1", "a2", "b2")
    world.read()
    world.deliver("a1", "b1")
    world.recycle()
    world.append("a3")


def recycle_under_a_reader(world: World) -> None:
    """A second reader stays where the first one has passed."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.stand_at("a1")
    world.deliver("a1", "b1", "a2")
    world.checkpoint()


def recycle_out_of_order(world: World) -> None:
    """The newer record of a slot is delivered before the older one, which must wait."""
    world.open()
    world.given("a1", "b1", "b2")
    world.read()
    world.deliver("b1", "b2")
    world.checkpoint()
    world.append("b3")


def fill_and_deliver(world: World) -> None:
    world.open()
    world.given("a1", "b1")
    world.drain()
    world.ring.leave()
    world.flush()
    world.checkpoint()
    world.from_here()


def use_again(world: World) -> None:
    """The slot's next life begins with the same sequence, in the same places."""
    world.open()
    world.from_here()
    world.append("b2", "a2", "b3")


# -- compaction ------------------------------------------------------------------------------------------------------


def two_slots(world: World) -> None:
    """Lane a is stalled, lane b is not: half of the oldest slot waits."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("b1")
    world.flush()
    world.from_here()


def compact(world: World) -> None:
    two_slots(world)
    world.begin_move()
    world.copy_all()
    world.make()
    world.append("b2", "b3")


def compact_meanwhile(world: World) -> None:
    """What was in flight is acknowledged while the move is made."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.begin_move()
    world.copy_all()
    world.make(partial(world.deliver, "a1"))


def compact_and_publish(world: World) -> None:
    two_slots(world)
    world.begin_move()
    world.copy_all()
    world.make(partial(world.append, "b2"), partial(world.append, "b3"))


def compact_and_drain(world: World) -> None:
    two_slots(world)
    world.begin_move()
    world.copy_all()
    world.make()
    world.from_here()
    world.drain()
    world.checkpoint()


def three_slots(world: World) -> None:
    """Two of which half waits, and a third."""
    world.open()
    world.given("a1", "b1", "a2", "b2", "a3")
    world.read()
    world.deliver("b1", "b2")


def begin_to_compact(world: World) -> None:
    three_slots(world)
    world.flush()
    world.from_here()
    world.begin_move()
    world.copy()


def compact_the_next(world: World) -> None:
    """The record was delivered from where it was; the move of the next slot makes P rise above its copy."""
    world.open()
    world.read()
    if world.directory.checkpoint.moved or "a1" not in world.queue:
        return
    world.deliver("a1")
    world.checkpoint()
    world.begin_move()
    world.copy_all()
    world.make()


def begin_to_compact_again(world: World) -> None:
    """One move was made; the copy of the next one stands in the same slot of the retry ring."""
    three_slots(world)
    world.begin_move()
    world.copy_all()
    world.make()
    world.from_here()
    world.begin_move()
    world.copy_all()


def compact_again(world: World) -> None:
    """The move is made this time: its checkpoint covers what the opening has marked, or taken the header from."""
    world.open()
    world.read()
    world.begin_move()
    world.copy_all()
    world.flush()
    world.retry.sync()
    world.from_here()
    world.make()


def abandon(world: World) -> None:
    """A move fails; its record is delivered from where it was, and the next move makes P rise above it."""
    begin_to_compact(world)
    world.copy_all()
    world.abandon()
    world.deliver("a1")
    world.checkpoint()
    world.begin_move()
    world.copy_all()
    world.make()


def abandon_in_flight(world: World) -> None:
    """One of its records is acknowledged before the move fails, and then the slot is moved after all."""
    world.open()
    world.given("a1", "b1", "a2", "b2", "b3")
    world.read()
    world.deliver("b1")
    world.begin_move()
    world.copy_all()
    world.make()  # a copy that waits, of the same lane
    world.from_here()
    world.begin_move()
    world.copy_all()
    world.deliver("b2")
    world.abandon()
    world.flush()
    world.retry.sync()
    world.begin_move()
    world.copy_all()
    world.make()


def checkpoint_in_a_move(world: World) -> None:
    """The periodic checkpoint's flush covers copies that do not count, in a slot of the retry ring that was left."""
    world.open()
    world.given("a1", "b1", "a2", "a3", "a4")
    world.read()
    world.deliver("b1")
    world.begin_move()
    world.copy_all()
    world.make()
    world.from_here()
    world.begin_move()
    world.copy()
    world.copy()
    world.checkpoint()
    world.abandon()


# -- rewriting the retry ring ----------------------------------------------------------------------------------------


def moved_whole(world: World) -> None:
    """Two records of the retry ring."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.begin_move()
    world.copy_all()
    world.make()


def moved(world: World) -> None:
    """The same, of which one is delivered."""
    moved_whole(world)
    world.deliver("b1")
    world.retry.sync()
    world.from_here()


def rewrite(world: World) -> None:
    moved(world)
    world.begin_rewriting()
    world.rewrite()
    world.make()


def rewrite_in_flight(world: World) -> None:
    """What was in flight is acknowledged while the copies are made to count."""
    moved(world)
    world.begin_rewriting()
    world.rewrite()
    world.make(partial(world.deliver, "a1"))


def rewrite_again(world: World) -> None:
    """The second time over the slot that the first one has freed."""
    rewrite(world)
    world.from_here()
    world.begin_rewriting()
    world.rewrite()
    world.make()


def rewrite_and_drain(world: World) -> None:
    rewrite(world)
    world.from_here()
    world.drain()
    world.checkpoint()


def begin_to_rewrite(world: World) -> None:
    moved(world)
    world.begin_rewriting()
    world.rewrite()


def move_the_next(world: World) -> None:
    """The record was delivered from where it was; a move's checkpoint covers the copy that does not count."""
    world.open()
    world.read()
    if "a1" not in world.queue:
        return
    world.deliver("a1")
    world.checkpoint()
    world.begin_move()
    world.copy_all()
    world.from_here()
    world.make()


def begin_to_rewrite_two(world: World) -> None:
    """Each copy has a slot of its own."""
    world.open()
    world.given("a1", "a2", "a3", "a4", size=WHOLE)
    world.read()
    for _ in range(2):
        world.begin_move()
        world.copy_all()
        world.make()
    world.begin_rewriting()
    world.rewrite()
    world.retry.sync()
    world.from_here()


def abandon_rewriting(world: World) -> None:
    """A rewriting fails; its record is delivered from where it was, and a later checkpoint covers the copy."""
    begin_to_rewrite(world)
    world.abandon()
    world.deliver("a1")
    world.checkpoint()


def checkpoint_in_a_rewriting(world: World) -> None:
    """The periodic one: its flush covers copies that do not count."""
    begin_to_rewrite(world)
    world.checkpoint()


def captured_before(world: World) -> None:
    """A checkpoint that was captured before is written when the copies count and their originals are gone."""
    begin_to_rewrite(world)
    captured = world.capture()
    world.make()
    world.begin_rewriting()
    world.rewrite()
    world.make()
    world.from_here()
    world.write(captured)


# -- a clean end -----------------------------------------------------------------------------------------------------


def end(world: World) -> None:
    """Records are delivered behind a checkpoint, and then nothing is stored any more."""
    world.open()
    world.given("a1", "a2", "b1")
    world.read()
    world.checkpoint()
    world.from_here()
    world.deliver("a1", "a2")
    world.end()


def end_with_copies(world: World) -> None:
    moved(world)
    world.end()
    world.from_here()
    world.at("ended")


def end_in_a_rewriting(world: World) -> None:
    """Its copies do not count, and the next opening has to say so, though nothing is in doubt."""
    begin_to_rewrite(world)
    world.end()


def rewrite_what_is_left(world: World) -> None:
    world.open()
    world.read()
    world.begin_rewriting()
    world.rewrite()
    world.make()
    world.deliver("a1", "a2")


def checkpoint_and_drain(world: World) -> None:
    world.open()
    world.read()
    world.checkpoint()
    world.from_here()
    world.deliver("a1", "a2", "a3")


def end_at_once(world: World) -> None:
    """Lane a takes two sectors: its settle words can be lost one by one."""
    world.open()
    world.given("a1", "a2", "a3")
    world.end()
    world.from_here()
    world.at("ended")


# -- opening, epoch, suffix rule -------------------------------------------------------------------------------------


def deliver_all(world: World) -> None:
    """Durable records, whose settle words are not: they stand in sectors of their own."""
    world.open()
    world.given("a1", "a2", "a3", "b1")
    world.drain()


def shrink(world: World) -> None:
    """Slots are cut off the file, and their headers with them."""
    world.open()
    world.drain()
    world.shrink()
    world.checkpoint()


def shrink_behind_what_waits(world: World) -> None:
    """The slots before the last one are free, and in that a record waits."""
    many_begun(world)
    for number in range(6):
        world.deliver(f"b{number}")
    world.checkpoint()
    world.from_here()
    world.shrink()


def shrink_before_a_checkpoint(world: World) -> None:
    """All is delivered and settled, and the durable checkpoint knows that it was stored, and no more."""
    many_begun(world)
    for number in range(7):
        world.deliver(f"b{number}")
    world.ring.leave()
    world.read()  # and nobody stands there any more
    world.flush()
    world.from_here()
    world.shrink()


def just_open(world: World) -> None:
    world.open()


def deliver_without_order(world: World) -> None:
    """Of records that have no lane, the newer one is delivered, and durably so."""
    world.open()
    world.given("-1", "-2", "-3")
    world.read()
    world.deliver("-2")
    world.flush()


def many_begun(world: World) -> None:
    """Each has a slot of its own."""
    world.open()
    world.given(*[f"b{number}" for number in range(7)], size=WHOLE)
    world.checkpoint()
    world.read()


def many_slots(world: World) -> None:
    world.open()
    for number in range(7):
        world.append(f"b{number}", size=WHOLE)
        world.drain()
        world.flush()
    world.ring.leave()
    world.checkpoint()
    world.from_here()


SMALL = [
    Scenario("opening", [begin]),
    Scenario("checkpoint", [checkpoint]),
    Scenario("checkpoints", [checkpoints]),
    Scenario("opening behind checkpoints", [checkpoints, just_open], cuts=False),
    Scenario("recycling", [recycle]),
    Scenario("recycling at once", [recycle_at_once]),
    Scenario("recycling under a reader", [recycle_under_a_reader]),
    Scenario("recycling out of order", [recycle_out_of_order]),
    Scenario("a slot's next life", [fill_and_deliver, use_again], cuts=False, rot=True),
    Scenario("compaction", [compact], rot=True),
    Scenario("compaction in flight", [compact_meanwhile]),
    Scenario("compaction and drain", [compact_and_drain]),
    Scenario("a crash in a move", [begin_to_compact, compact_the_next], cuts=False),
    Scenario("a crash in a second move", [begin_to_compact_again, compact_again], cuts=False),
    Scenario("a move that fails", [abandon]),
    Scenario("a move that fails in traffic", [abandon_in_flight]),
    Scenario("a checkpoint in a move", [checkpoint_in_a_move]),
    Scenario("rewriting", [rewrite], rot=True),
    Scenario("rewriting in flight", [rewrite_in_flight]),
    Scenario("rewriting, twice", [rewrite_again], rot=True),
    Scenario("rewriting and drain", [rewrite_and_drain]),
    Scenario("a crash in a rewriting", [begin_to_rewrite, move_the_next], cuts=False),
    Scenario("a crash in a rewriting of two slots", [begin_to_rewrite_two, compact_again], cuts=False),
    Scenario("a rewriting that fails", [abandon_rewriting]),
    Scenario("a checkpoint in a rewriting", [checkpoint_in_a_rewriting]),
    Scenario("captured before a rewriting", [captured_before]),
    Scenario("a clean end", [end]),
    Scenario("opened after a clean end", [end_at_once, drain]),
    Scenario("delivering after a clean end", [end_at_once, checkpoint_and_drain]),
    Scenario("a clean end in a rewriting", [end_in_a_rewriting]),
    Scenario("rewriting after a clean end", [end_with_copies, rewrite_what_is_left]),
    Scenario("settle words", [deliver_all]),
    Scenario("settle words, twice", [deliver_all, drain], kills=False),
    Scenario("settle words without a lane", [deliver_without_order]),
    Scenario("shrinking", [many_slots, shrink], cuts=False),
    Scenario("shrinking behind what waits", [shrink_behind_what_waits]),
    Scenario("shrinking before a checkpoint", [shrink_before_a_checkpoint]),
]
DEEP = [
    Scenario("checkpoint in traffic", [checkpoint_and_roll]),
    Scenario("compaction in traffic", [compact_and_publish]),
    Scenario("opening, twice", [begin, go_on]),
    Scenario("a power cut in a move", [begin_to_compact, compact_the_next]),
    Scenario("a power cut in a rewriting", [begin_to_rewrite, rewrite_what_is_left]),
    Scenario("a power cut behind a rewriting", [rewrite_again, rewrite_what_is_left]),
    Scenario("opened after a clean end in a rewriting", [end_in_a_rewriting, drain]),
    Scenario("settle words, three times", [deliver_all, drain, drain], kills=False),
]
