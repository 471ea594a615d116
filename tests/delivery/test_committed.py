"""What a committed position covers: of this directory, of its copies, and of what these have in common."""

import pytest

from aiorecover.delivery.committed import (
    LINE_MOST,
    OTHERS_MOST,
    Committed,
    covered_by,
    dispatched,
    is_ours,
    opened_by,
    owner_of,
    parsed,
    read_by,
    to_commit,
)
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, Destination, Transactional, pack, unpack

METADATA_MOST = 4096  # characters; offset.metadata.max.bytes


def at(epoch: int, sequence: int) -> int:
    return fmt.position(epoch, sequence)


class Directory:
    """One that is opened, commits, dies and is copied; only what is durable outlives an opening."""

    def __init__(self, name: str, known: Transactional | None = None, epoch: int = 0) -> None:
        self.name = name
        self.known = known or Transactional()
        self.epoch = epoch

    def open(self, found: Committed | None) -> int:
        """What is covered."""
        self.epoch += 1
        self.known = opened_by(self.known, f"{self.name}/{self.epoch}")
        covered = covered_by(found, self.known)
        self.known = read_by(self.known, found, self.epoch)
        return covered

    def commit(self, position: int, earlier: dict[int, int] | None = None) -> Committed:
        self.known = dispatched(self.known, earlier or {})
        committed = to_commit(position, self.known)
        return parsed(committed.position, committed.metadata)

    def copy(self, name: str) -> "Directory":
        return Directory(name, self.known, self.epoch)


def test_an_opening_is_named_by_its_producer_id_and_its_epoch() -> None:
    names = {owner_of(producer, epoch) for producer in (1, 2, 1 << 63) for epoch in (1, 2, 1 << 23)}
    assert len(names) == 9
    assert owner_of(7, 3) == f"{fmt.producer_text(7)}/3"


def test_of_its_own_the_whole_position_counts_and_without_one_nothing() -> None:
    one = Directory("a")
    assert one.open(None) == 0
    found = one.commit(at(1, 5))
    assert is_ours(found, one.known)
    assert one.open(found) == at(1, 5)


def test_an_opening_that_has_committed_nothing_counts_as_none() -> None:
    one = Directory("a")
    one.open(None)
    found = one.commit(at(1, 5))
    assert [one.open(found) for _ in range(3)] == [at(1, 5)] * 3


@pytest.mark.parametrize("dies", ["before its commit", "behind its commit"])
def test_however_often_it_was_opened_in_an_outage_the_position_from_before_it_counts(dies: str) -> None:
    one = Directory("a")
    one.open(None)
    found = one.commit(at(1, 5))
    one.open(found)
    if dies == "behind its commit":
        found = one.commit(at(2, 7))
    for _ in range(2 * LINE_MOST):  # and no broker can be reached
        one.epoch += 1
        one.known = opened_by(one.known, f"a/{one.epoch}")
    assert len(one.known.line) <= LINE_MOST
    assert one.open(found) == found.position


def test_a_copy_counts_what_the_original_has_brought_of_what_it_holds_and_nothing_of_its_own() -> None:
    one = Directory("a")
    one.open(None)
    copy = one.copy("b")
    one.open(one.commit(at(1, 5)))
    found = one.commit(at(2, 900), earlier={1: at(1, 70)})
    assert not is_ours(found, copy.known)
    assert [copy.open(found) for _ in range(2)] == [at(1, 70)] * 2


def test_where_the_other_has_not_come_so_far_its_position_counts() -> None:
    one = Directory("a")
    one.open(None)
    before = one.commit(at(1, 5))
    copy = one.copy("b")
    one.open(before)
    found = one.commit(at(1, 20), earlier={1: at(1, 70)})  # acknowledged, and not committed
    assert copy.open(found) == at(1, 20)


def test_who_was_taken_over_from_counts_what_it_had_committed_and_what_the_other_has() -> None:
    one = Directory("a")
    one.open(None)
    other = one.copy("b")
    other.open(one.commit(at(1, 5)))
    one.open(other.commit(at(2, 900), earlier={1: at(1, 70)}))
    its_own = one.commit(at(2, 3))
    other.open(its_own)
    found = other.commit(at(3, 1), earlier={2: at(2, 950)})
    assert one.open(found) == at(2, 3)
    assert one.open(other.commit(at(3, 1))) == at(2, 3)


def test_of_a_copy_that_only_said_that_it_is_there_the_rest_of_the_common_records_counts_by_the_other() -> None:
    one = Directory("a")
    one.open(None)
    first = one.commit(at(1, 5))
    other = one.copy("b")
    one.open(first)
    named = one.commit(at(1, 5))
    other.open(named)
    found = other.commit(at(2, 9), earlier={1: at(1, 70)})
    assert one.open(found) == at(1, 70)


def test_the_metadata_has_room_after_any_number_of_openings_and_copies() -> None:
    one = Directory("abcdefghijklm", epoch=10**7)
    found: Committed | None = None
    for number in range(100):
        one.open(found)
        found = one.commit(at(one.epoch, fmt.SEQUENCE_MASK))
        other = one.copy(f"nopqrstuvwxy{number % 10}")
        other.open(found)
        found = other.commit(at(other.epoch, fmt.SEQUENCE_MASK), earlier={one.epoch: at(one.epoch, 5)})
    assert found is not None
    assert len(found.metadata) <= METADATA_MOST
    assert len(found.before) <= LINE_MOST + OTHERS_MOST


@pytest.mark.parametrize(
    "metadata",
    ["", " ", "x", "x y", "x y:", "x :5 y:z", "b/1 a/1:\N{SUPERSCRIPT TWO}", f"b/1 0 b/0:{1 << 64}", f"b/1 {1 << 64}"],
)
def test_metadata_of_somebody_else_count_for_nothing(metadata: str) -> None:
    one = Directory("a")
    one.open(None)
    assert one.open(parsed(at(7, 7), metadata)) == 0
    known = Destination(transactional=one.known)
    remembered = pack(Checkpoint(producer_id=1, epoch=2, slot_bytes=1 << 24, destination=known), 1)
    assert unpack(remembered).state == "valid"
    assert one.open(one.commit(at(2, 5))) == at(2, 5)
