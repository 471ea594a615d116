"""Every set of up to three sectors of a small ring rots: what is whole is delivered, and what is not is named."""

from collections.abc import Iterator
from itertools import combinations

import pytest

from aiorecover.wal import opening
from aiorecover.wal.ring import Ring
from tests.protocols.explore import Program
from tests.protocols.faults import Fault, header_in_front_only, no_seal, not_sealed_by_its_reader
from tests.protocols.oracle import Position, ViolationError, demand
from tests.protocols.sectors import SECTOR, Image
from tests.protocols.world import FILES, State, World, observe
from tests.wal.rig import SLOT

TO_A_SLOT = SLOT // SECTOR
FRAMES: dict[Position, set[int]] = {  # the sectors that a record needs: its head, and the word at its end
    (1, 1): {0, 14},
    (1, 2): {14, 15, 29},
    (1, 3): {TO_A_SLOT, TO_A_SLOT + 14},
}


def publish(world: World) -> None:
    """Two records fill a slot, which is sealed; a third one stands in the next."""
    world.open()
    world.append("a1", "b1", "a2")


def read(world: World) -> None:
    """Another process comes to the end that the one before has left open."""
    world.open()
    world.read()
    world.at("read")


def left(*lives: Program) -> tuple[Image, ...]:
    """By processes that were killed, one after the other."""
    state = State()
    for number, program in enumerate(lives):
        world = World(state, life=number)
        try:
            program(world)
            moment = list(world.moments)[-1]
        finally:
            world.close()
        state = State(moment.spans, moment.facts)
    return tuple(span.live for span in state.spans)


def rotten(image: Image) -> Iterator[tuple[set[int], Image]]:
    numbers = [number for number, _ in image.sectors]
    for count in (1, 2, 3):
        for chosen in combinations(numbers, count):
            sectors = (
                (number, bytes(byte ^ 0xA5 for byte in held) if number in chosen else held)
                for number, held in image.sectors
            )
            yield set(chosen), Image(image.size, tuple(sectors))


def every_rot_is_told(*lives: Program) -> int:
    images, count = left(*lives), 0
    open_still = len(lives) == 1
    for chosen, ring in rotten(images[FILES.index("ring")]):
        seen = observe((ring, *images[1:]), boots=1)
        count += 1
        given, reported = set(seen.positions), set(seen.missing)
        headers_lost = [{start, start + TO_A_SLOT - 1} <= chosen for start in (0, TO_A_SLOT)]
        demand(seen.damaged == sum(headers_lost), "I10: a damaged slot is reported", chosen, seen.damaged)
        for position, sectors in FRAMES.items():
            if headers_lost[min(sectors) // TO_A_SLOT]:
                demand(position not in given, "what has no header is not read", chosen)
            elif sectors & chosen:
                known = position != (1, 3) or not open_still  # of a slot that nobody left its end says nothing
                demand(position not in given, "I2: what is damaged is not delivered", chosen, position)
                demand(position in reported or not known, "what is damaged is named", chosen, position)
            else:
                demand(position in given, "what is whole is delivered", chosen, position)
        demand(not reported & given, "what was delivered is not reported", chosen)
        demand(reported <= set(FRAMES), "nothing else is reported", chosen)
    return count


def test_what_rots_is_named_and_the_rest_is_delivered() -> None:
    assert every_rot_is_told(publish) == 8 + 28 + 56


def test_what_rots_behind_the_first_reader_is_named_to_the_last_record() -> None:
    assert every_rot_is_told(publish, read) == 8 + 28 + 56


@pytest.mark.parametrize("fault", [no_seal, header_in_front_only])
def test_a_ring_that_does_not_say_things_twice_is_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        every_rot_is_told(publish)


def test_a_reader_that_does_not_seal_what_a_crash_left_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a checkpoint follows, which says how far it has read, or the opening has seen it."""
    not_sealed_by_its_reader(monkeypatch)
    every_rot_is_told(publish)
    every_rot_is_told(publish, read)
    monkeypatch.setattr(Ring, "reached", property(lambda ring: [ring.last_position] if ring.sequence else []))
    every_rot_is_told(publish, read)
    monkeypatch.setattr(opening, "_begun", lambda _file, _bytes, slot, _head: slot)
    with pytest.raises(ViolationError, match="what is damaged is named"):
        every_rot_is_told(publish, read)
