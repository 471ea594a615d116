"""Frames of a batch that a crash left in flight: settled as a whole, passed by readers, and their slot stays."""

from aiorecover.wal.reading import Reader
from tests.wal.rig import Opened, found, read


def in_flight() -> tuple[Opened, list[int]]:
    """The next life of a directory with four records, the second one settled; places of the first three, claimed."""
    opened = Opened()
    opened.append(b"a", b"b", b"c", b"d")
    places = opened.ring.recent_places[1:4]
    opened.ring.settle(opened.ring.live[0], places[1:2])
    following = opened.dies()
    slot = following.ring.live[0]
    following.ring.claim(slot, places, places[1:2])
    return following, places


def test_readers_pass_what_was_claimed() -> None:
    opened, _ = in_flight()
    assert found(opened.read()) == [((1, 4), b"d")]


def test_a_reader_inside_the_slot_sees_what_was_claimed_and_the_settled_ones_wait_again() -> None:
    opened, _ = in_flight()
    inside = Reader.inside(opened.ring, opened.ring.live[0], bytes)
    assert [record for _, record in found(read(inside))] == [b"a", b"b", b"c", b"d"]


def test_what_was_claimed_counts_as_waiting_and_keeps_its_slot_until_all_is_settled() -> None:
    opened, places = in_flight()
    slot = opened.ring.live[0]
    assert opened.ring.pending() == 3
    opened.settle(opened.read())
    assert opened.ring.pending() == 3
    opened.ring.settle(slot, places[:2])
    assert opened.checkpoint() == 0
    opened.ring.settle(slot, places[2:])
    assert opened.ring.pending() == 0
    assert opened.checkpoint() == 1


def test_when_the_process_dies_again_the_whole_batch_waits() -> None:
    opened, _ = in_flight()
    opened.read()
    assert [record for _, record in found(opened.dies().read())] == [b"a", b"b", b"c", b"d"]


def test_a_window_of_nothing_but_claimed_frames_is_no_end() -> None:
    opened, _ = in_flight()
    opened.append(b"e")
    assert [record for _, record in found(opened.read(limit=1))] == [b"d", b"e"]
