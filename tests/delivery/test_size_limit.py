"""How large batches may be where a topic has refused one: found by halving, tried anew now and then."""

from aiorecover.delivery.size_limit import FIRST_PROBE, LONGEST_PROBE, SizeLimit


def limit_of(refused: int) -> SizeLimit:
    return SizeLimit(refused, lambda *_: 1.0)


def halved(limit: SizeLimit, topic: int, now: float = 0.0) -> None:
    """A batch of the limit's size is refused, and its halves until they are taken."""
    size, whole = limit.bytes, True
    while size > topic:
        limit.refused(size, size // 2, now, whole=whole)
        size, whole = size // 2, False
    limit.taken(size, now)


def test_it_is_the_first_size_that_is_taken() -> None:
    limit = limit_of(512)
    halved(limit, 100)
    assert limit.bytes == limit.next(FIRST_PROBE - 1) == 64
    limit.taken(10, 1.0)
    assert limit.bytes == 64, "a batch that was not full says nothing"


def test_a_larger_one_is_tried_after_a_while_and_later_each_time_it_is_refused() -> None:
    limit, now = limit_of(512), 0.0
    tries: list[float] = []
    halved(limit, 90)
    while len(tries) < 12:
        now += 1.0
        if (size := limit.next(now)) > limit.bytes:
            assert size == 96
            tries.append(now)
            limit.refused(size, 49, now, whole=True)
    assert limit.bytes == 64, "its halves say nothing: as large as they are has been taken"
    pauses = [after - before for before, after in zip([0.0, *tries], tries, strict=False)]
    assert pauses[:3] == [FIRST_PROBE, 2 * FIRST_PROBE, 4 * FIRST_PROBE]
    assert pauses[-1] == LONGEST_PROBE


def test_what_is_taken_raises_it_step_by_step() -> None:
    limit, now = limit_of(512), 0.0
    halved(limit, 100)
    for size in (96, 144, 216):
        now += FIRST_PROBE
        assert limit.next(now) == size
        limit.taken(size, now)
        assert limit.bytes == size


def test_a_smaller_one_that_is_refused_lowers_it() -> None:
    """Records compress worse, or the topic was set anew."""
    limit = limit_of(512)
    halved(limit, 100)
    halved(limit, 20, now=50.0)
    assert limit.bytes == limit.next(50.0 + FIRST_PROBE - 1) == 16
    assert limit.next(50.0 + FIRST_PROBE) == 24


def test_a_record_that_was_too_large_by_itself_says_nothing_of_the_others() -> None:
    limit = limit_of(512)
    limit.refused(512, 300, 0.0, whole=True)
    limit.refused(300, 200, 0.0, whole=False)
    limit.explained()
    assert limit.bytes == 512
    halved(limit, 100)
    limit.refused(64, 40, 0.0, whole=True)
    limit.explained()
    assert limit.bytes == 64
