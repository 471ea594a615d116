"""One life of a slot, in memory: where a frame of it counts."""

from tests.wal.test_stream import Life, settle


def test_a_frame_counts_where_it_stands_until_its_copy_does_and_then_in_the_newest_copy_of_it() -> None:
    life = Life()
    (slot, first, *_), (_, second, *_) = life.left[:2]
    move = life.copy()
    assert slot.counts_at(second) == (slot, second)
    life.make(move)
    home, there = slot.counts_at(second)
    assert (home, there) == slot.copies[second]
    life.make_anew(life.copy_anew())
    assert slot.counts_at(second) == home.copies[there]
    settle(life.left[:1])
    assert slot.counts_at(first)[0].ring is life.opened.ring, "a settled one has no copy"
