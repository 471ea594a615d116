"""The small cases of flushes that fail: each of them, at each protocol, and what the lives behind it make of that.

The first life does what it does in `scenarios`, until one flush fails; then it goes on as far as it may. The next one
opens what is left in the page cache, some of which no flush will write before it is stored again, and flushes. Crashes
count from the failure on: those before it belong to `scenarios`.
"""

from functools import partial

from tests.protocols.explore import Scenario
from tests.protocols.scenarios import (
    begin_to_rewrite,
    begin_to_rewrite_two,
    compact_again,
    drain,
    just_open,
    two_slots,
)
from tests.protocols.world import World

# -- the life whose flush fails --------------------------------------------------------------------------------------


def fragile_behind(world: World, *names: str) -> None:
    """So many records are durable, and read."""
    world.open()
    world.given(*names)
    world.read()
    world.fragile()


def about_to_move(world: World) -> None:
    """All is copied."""
    two_slots(world)
    world.fragile()
    world.begin_move()
    world.copy_all()


def open_first(world: World) -> None:
    """A new directory: its first checkpoints."""
    world.fragile()
    world.open()


def flush(world: World) -> None:
    """What was published is flushed; delivery goes on, and publishing tries to."""
    fragile_behind(world, "a1")
    world.append("b1")
    world.flush()
    world.append("a2")
    world.deliver("a1")
    world.recycle()
    world.flush()


def flush_in_traffic(world: World) -> None:
    """More of it."""
    world.open()
    world.given("a1")
    world.append("b1")
    world.read()
    world.fragile()
    world.append("a2")
    world.flush()
    world.append("a3")
    world.deliver("b1", "a1")
    world.recycle()
    world.flush()


def flush_of_two_slots(world: World) -> None:
    """What was published stands in a slot that is sealed by then."""
    world.open()
    world.given("a1")
    world.fragile()
    world.append("b1")
    world.ring.go_on()
    world.flush()


def flush_of_a_new_slot(world: World) -> None:
    """The record begins a slot of its own, behind one that was flushed before it was sealed."""
    fragile_behind(world, "a1", "b1")
    world.append("a2")
    world.flush()
    world.deliver("a1")


def flush_of_a_slots_next_life(world: World) -> None:
    """What stood there was durable, and is not needed any more."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("a1", "b1")
    world.checkpoint()
    world.append("b2")
    world.flush()
    world.fragile()
    world.append("a3")
    world.flush()


def checkpoint(world: World) -> None:
    """Delivery and publishing go on while the keeper flushes and writes, and fails."""
    fragile_behind(world, "a1")
    world.checkpoint(partial(world.append, "b1"))
    world.deliver("a1")


def checkpoint_in_traffic(world: World) -> None:
    """More of it."""
    fragile_behind(world, "a1")
    world.checkpoint(partial(world.deliver, "a1"), partial(world.append, "b1"))
    world.append("a2")


def checkpoints(world: World) -> None:
    """Several: the copies alternate, and either one may be what fails."""
    fragile_behind(world, "a1", "b1")
    for name in ("a1", "b1"):
        world.deliver(name)
        world.checkpoint()


def recycle(world: World) -> None:
    """The checkpoint that would free the oldest slot."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("a1", "b1")
    world.fragile()
    world.checkpoint(world.recycle)
    world.append("a3")


def recycle_late(world: World) -> None:
    """It is there already, and somebody would free the slot when another flush has failed."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("a1", "b1")
    captured = world.capture()
    world.write(captured)
    world.fragile()
    world.flush()
    world.recycle(captured)


def compact(world: World) -> None:
    """The move, which is not made then; its record is delivered from where it was."""
    about_to_move(world)
    world.make()
    world.append("b2", "b3")
    world.deliver("a1")


def compact_in_flight(world: World) -> None:
    """What was in flight is acknowledged while the move fails."""
    about_to_move(world)
    world.make(partial(world.deliver, "a1"))
    world.recycle()


def rewrite(world: World) -> None:
    """The rewriting, which is not made then."""
    begin_to_rewrite(world)
    world.fragile()
    world.make()
    world.deliver("a1")


def rewrite_in_flight(world: World) -> None:
    """The same; its record is acknowledged meanwhile."""
    begin_to_rewrite(world)
    world.fragile()
    world.make(partial(world.deliver, "a1"))


def bury(world: World) -> None:
    """The letter's, without which its record is not settled."""
    fragile_behind(world, "a1", "b1")
    world.bury("a1")
    world.deliver("b1")


def end(world: World) -> None:
    """The last checkpoint's."""
    fragile_behind(world, "a1", "a2", "b1")
    world.deliver("a1", "a2")
    world.end()


def deliver_one_lane(world: World) -> None:
    """Settle words alone: they stand in slots that a flush had covered, and nobody writes them again."""
    world.open()
    world.given("b1", "a1", "a2", "b2", "b3")
    world.read()
    world.checkpoint()
    world.deliver("a1", "a2")
    world.fragile()
    world.flush()


# -- the lives behind it ---------------------------------------------------------------------------------------------


def go_on(world: World) -> None:
    """Flushed once more, whatever stands there is durable."""
    world.open()
    world.append("a9")
    world.flush()
    world.from_here()
    world.at("flushed")


def go_on_step_by_step(world: World) -> None:
    world.open()
    world.append("a9")
    world.flush()
    world.drain()
    world.checkpoint()


def copy_again(world: World) -> None:
    """The move is made this time."""
    world.open()
    world.read()
    world.begin_move()
    world.copy_all()
    world.make()
    world.from_here()
    world.at("moved")


def rewrite_after_all(world: World) -> None:
    world.open()
    world.read()
    world.begin_rewriting()
    world.rewrite()
    world.make()
    world.from_here()
    world.at("rewritten")


def bury_again(world: World) -> None:
    """The letter is found, and flushed."""
    world.open()
    world.read()
    if "a1" in world.queue:
        world.bury("a1")
        world.from_here()
        world.at("buried")


def fail_again(world: World) -> None:
    world.fragile()
    world.open()
    world.append("b9")
    world.flush()
    world.append("b8")


def flush_what_was_voided(world: World) -> None:
    """The opening has taken away the headers of what a rewriting had copied."""
    world.fragile()
    world.open()
    world.read()
    world.checkpoint()


def bury_while_failing(world: World) -> None:
    world.open()
    world.read()
    world.fragile()
    if "a1" in world.queue:
        world.bury("a1")


def end_cleanly(world: World) -> None:
    """Nothing is in doubt any more but the settle words that were before."""
    world.open()
    world.read()
    world.end()
    world.from_here()
    world.at("ended")


SMALL = [
    Scenario("opening, failing", [open_first, go_on], cuts=False),
    Scenario("flush, failing", [flush, go_on], cuts=False),
    Scenario("two slots, failing", [flush_of_two_slots, go_on], cuts=False),
    Scenario("a new slot, failing", [flush_of_a_new_slot, just_open, go_on], cuts=False),  # killed while it opens
    Scenario("a slot's next life, failing", [flush_of_a_slots_next_life, go_on], cuts=False),
    Scenario("checkpoint, failing", [checkpoint, go_on], cuts=False),
    Scenario("checkpoints, failing", [checkpoints, just_open], cuts=False),
    Scenario("recycling, failing", [recycle, go_on], cuts=False),
    Scenario("recycling late, failing", [recycle_late, go_on], cuts=False),
    Scenario("compaction, failing", [compact, copy_again], cuts=False),
    Scenario("rewriting, failing", [rewrite, rewrite_after_all], cuts=False),
    Scenario("voided copies, failing", [begin_to_rewrite_two, flush_what_was_voided, compact_again], cuts=False),
    Scenario("letters, failing", [bury, bury_again], cuts=False),
    Scenario("a clean end, failing", [end, go_on], cuts=False),
    Scenario("settle words, failing", [deliver_one_lane, end_cleanly, drain], told=True),
]
DEEP = [
    Scenario("checkpoint in traffic, failing", [checkpoint_in_traffic, go_on], cuts=False),
    Scenario("compaction in flight, failing", [compact_in_flight, go_on], cuts=False),
    Scenario("rewriting in flight, failing", [rewrite_in_flight, go_on], cuts=False),
    Scenario("flush in traffic, failing", [flush_in_traffic, go_on], cuts=False),
    Scenario("flush, failing, and a power cut", [flush, go_on]),
    Scenario("checkpoints, failing twice", [checkpoints, fail_again, go_on], cuts=False),
    Scenario("letters, failing twice", [bury, bury_while_failing, bury_again], cuts=False),
    Scenario("compaction, failing, step by step", [compact, go_on_step_by_step], cuts=False),
    Scenario("rewriting, failing, step by step", [rewrite, go_on_step_by_step], cuts=False),
]
