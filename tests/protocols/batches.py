"""The small cases of batches in flight: what the file `lanes` says of them, and the moves that go on around them.

A lane's batch is written down, sent, acknowledged and settled; what a life leaves in flight the next one sends again
as it was. Between any two copies of a move, or of a rewriting, the loop may publish, settle and acknowledge.
"""

from functools import partial

from tests.protocols.explore import Scenario
from tests.protocols.scenarios import moved, moved_whole
from tests.protocols.world import World


def send(world: World) -> None:
    """Two batches of a lane, one after the other: the second one's entry goes beside the first one's."""
    world.open()
    world.given("a1", "a2", "a3")
    world.read()
    world.sender.enter("a", "a1", "a2")
    world.sender.send("a")
    world.sender.acknowledge("a")
    world.sender.enter("a", "a3")
    world.sender.send("a")


def send_again(world: World) -> None:
    """What the life before had in flight, and then the rest; what comes of that is looked at, not each step."""
    world.open()
    world.drain()
    world.flush()
    world.checkpoint()
    world.from_here()
    world.at("all sent")


def forget(world: World) -> None:
    """The partition is gone: the entry is cleared, and the records are delivered otherwise."""
    world.open()
    world.given("a1", "b1")
    world.read()
    world.sender.enter("a", "a1")
    world.sender.enter("b", "b1")
    world.sender.send("a")
    world.from_here()
    world.sender.forget("a")
    world.checkpoint()


def checkpoint_in_flight(world: World) -> None:
    """Both entries are durable: the next boot finds them whole. Behind a clean end nothing else speaks against them."""
    world.open()
    world.given("a1", "b1")
    world.read()
    world.sender.enter("a", "a1")
    world.sender.send("a")
    world.from_here()
    world.sender.enter("b", "b1")
    world.checkpoint(partial(world.sender.send, "b"))
    world.end()


def in_two_slots(world: World) -> None:
    """A batch of two slots is in flight, of which the older one is to be moved."""
    world.open()
    world.given("a1", "b1", "a2")
    world.read()
    world.deliver("b1")
    world.sender.enter("a", "a1", "a2")
    world.sender.send("a")
    world.checkpoint()
    world.from_here()


def move_in_flight(world: World) -> None:
    """Before the move is made the entry is pointed to the copy."""
    in_two_slots(world)
    world.begin_move()
    world.copy_all()
    world.make()


def move_and_acknowledge(world: World) -> None:
    """The acknowledgement comes while the move is made."""
    in_two_slots(world)
    world.begin_move()
    world.copy_all()
    world.make(partial(world.sender.acknowledge, "a"))


def in_one_slot(world: World) -> None:
    """Both records of the slot are in one batch."""
    world.open()
    world.given("a1", "a2", "b1")
    world.read()
    world.sender.enter("a", "a1", "a2")
    world.sender.send("a")
    world.checkpoint()
    world.from_here()
    world.begin_move()


def acknowledge_between_copies(world: World) -> None:
    """Or before the first one, or behind the last."""
    in_one_slot(world)
    world.copy_all(partial(world.sender.acknowledge, "a"))
    world.make()


def about_to_move(world: World, *names: str) -> None:
    """A slot of which nothing is in flight, and nothing is copied yet."""
    world.open()
    world.given(*names)
    world.read()
    world.checkpoint()
    world.from_here()
    world.begin_move()


def enter_between_copies(world: World) -> None:
    """The batch is built, written down and sent while its slot is being copied."""
    about_to_move(world, "a1", "a2", "b1")
    world.copy_all(partial(world.sender.enter, "a", "a1", "a2"), partial(world.sender.send, "a"))
    world.make()


def settle_between_copies(world: World) -> None:
    """Records are delivered, and published, while their slot is being copied."""
    about_to_move(world, "a1", "b1", "a2")
    world.copy_all(partial(world.deliver, "b1"), partial(world.append, "b2"))
    world.make()


def checkpoint_between_copies(world: World) -> None:
    """The periodic one, in which the copies do not count."""
    about_to_move(world, "a1", "b1", "a2")
    world.copy_all(partial(world.deliver, "a1"), world.checkpoint)
    world.make()


def settle_between_rewritten(world: World) -> None:
    """The same, of a retry ring that is rewritten."""
    moved_whole(world)
    world.from_here()
    world.begin_rewriting()
    world.rewrite(partial(world.deliver, "a1"), partial(world.append, "b2"))
    world.make()


def rewrite_in_flight(world: World) -> None:
    """A batch of copies: the entry is pointed to the copies of these."""
    moved(world)
    world.sender.enter("a", "a1", "a2")
    world.sender.send("a")
    world.checkpoint()
    world.from_here()
    world.begin_rewriting()
    world.rewrite()
    world.make(partial(world.sender.acknowledge, "a"))


def move_what_was_in_flight(world: World) -> None:
    """The next life moves the slot of a batch that it has taken up."""
    world.open()
    world.read()
    if world.directory.checkpoint.moved or len(world.ring.live) < 2:
        return
    world.from_here()
    world.begin_move()
    world.copy_all()
    world.make()


def _flying(name: str, *lives: object, **more: object) -> Scenario:
    return Scenario(name, list(lives), in_flight=True, **more)  # type: ignore[arg-type]


SMALL = [
    _flying("in flight", send),
    _flying("in flight, sent again", send, send_again, cuts=False),
    _flying("in flight, forgotten", forget),
    _flying("in flight, another boot", checkpoint_in_flight),
    _flying("in flight, moved", move_in_flight),
    _flying("in flight, moved and sent again", move_in_flight, send_again, cuts=False),
    _flying("in flight, moved and acknowledged", move_and_acknowledge),
    _flying("acknowledged between copies", acknowledge_between_copies),
    Scenario("settled between copies", [settle_between_copies]),
]
DEEP = [
    Scenario("settled between copies of a rewriting", [settle_between_rewritten]),
    _flying("entered between copies", enter_between_copies),
    _flying("in flight, rewritten", rewrite_in_flight),
    _flying("in flight, and a power cut", checkpoint_in_flight, send_again),
    _flying("in flight, moved by the next life", in_two_slots, move_what_was_in_flight, send_again, cuts=False),
    _flying("in flight, moved, and a power cut", move_in_flight, send_again),
    _flying("acknowledged between copies, sent again", acknowledge_between_copies, send_again, cuts=False),
    Scenario("a checkpoint between copies", [checkpoint_between_copies]),
]
