"""How far streams were read that records are made from."""

import pytest

from aiorecover.errors import EncodeError
from aiorecover.wal.ages import FINENESS
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint, Destination, pack
from aiorecover.wal.sources import ROOM, Sources, Stored, later


def test_the_number_behind_the_highest_one_is_remembered_of_each_part() -> None:
    sources = Sources({"orders": {0: 7}})
    for part, number in ((0, 9), (0, 3), (1, 0), (0, 9)):
        sources.note("orders", part, number)
    sources.note("clicks", 5, 41)
    assert sources.captured() == {"orders": {0: 10, 1: 1}, "clicks": {5: 42}}
    assert len(sources) == 3


def test_what_was_captured_does_not_change_any_more() -> None:
    sources = Sources({})
    sources.note("orders", 0, 1)
    captured = sources.captured()
    sources.note("orders", 0, 2)
    assert captured == {"orders": {0: 2}}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (None, None, None),
        ({}, None, {}),
        (None, {"a": {0: 1}}, {"a": {0: 1}}),
        ({"a": {0: 5, 1: 2}}, {"a": {0: 3, 2: 9}, "b": {0: 1}}, {"a": {0: 5, 1: 2, 2: 9}, "b": {0: 1}}),
    ],
)
def test_a_checkpoint_takes_back_nothing_of_the_one_before(
    one: Stored | None, other: Stored | None, both: Stored | None
) -> None:
    assert later(one, other) == later(other, one) == both


def test_there_is_room_for_as_much_as_fits_a_checkpoint_beside_everything_else() -> None:
    """With the longest names there are, and marks of half a year."""
    sources, count = Sources({}), 0
    with pytest.raises(EncodeError, match="spread them over several producers"):  # noqa: PT012 - one of many
        for count in range(ROOM):
            stream = f"{count % 40:0249}"
            sources.check(stream, count)
            sources.note(stream, count, (1 << 62) + count)
    assert count == len(sources) > 1_000
    sources.check("0" * 249, 0)  # what is known needs no more room
    marks = tuple((1 << 50, 1 << 40) for _ in range(40 * FINENESS))
    full = Checkpoint(
        producer_id=1 << 63,
        epoch=1,
        slot_bytes=1 << 24,
        destination=Destination("c" * 255, "n" * 255, ("s" * 60,) * 20),
        sources=sources.captured(),
    )
    assert len(pack(full, 1)) + len(marks) * 18 <= COPY_BYTES


def test_there_is_room_for_thousands_of_partitions_of_one_topic() -> None:
    sources = Sources({})
    for part in range(2_500):
        sources.check("orders", part)
        sources.note("orders", part, 1 << 62)
