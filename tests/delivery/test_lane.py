"""A lane by itself: order, one batch in flight, and the identity under which the broker knows its batches."""

import random
from collections.abc import Sequence

import pytest
from aiokafka.errors import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import (
    EPOCH_LIMIT,
    MAKE_ROOM,
    MAX_READY,
    MEND_TOPIC,
    SEQUENCE_MODULUS,
    START_ANEW,
    Identity,
    Lane,
    lane_halted,
    lane_waits,
)
from aiorecover.errors import DeliveryError, DeliveryPendingError, PermanentDeliveryError

FRESH = Identity(7, 0)


def batch_of(count: int) -> LaneBatch:
    batch = LaneBatch(1 << 16, 0)
    for number in range(count):
        assert batch.add(number, 1, None, b"v", []) is not None
    batch.count = count
    return batch


def lane_with(*counts: int) -> Lane:
    """A lane with ready batches of so many records each."""
    lane = Lane("t", 3)
    for count in counts:
        lane.open = batch_of(count)
        assert lane.close_open() is not None
    return lane


def bases(lane: Lane, counts: Sequence[int]) -> list[int]:
    """The base sequences of batches of so many records, identified one after the other."""
    batches = [batch_of(count) for count in counts]
    for batch in batches:
        lane.identify(batch, FRESH)
    return [batch.identity[2] for batch in batches if batch.identity is not None]


# --- order


def test_batches_are_sent_in_the_order_in_which_they_were_closed() -> None:
    lane = lane_with(1, 2)
    first, second = lane.ready
    assert lane.next() is first
    assert lane.acknowledged() is first
    assert lane.next() is second


def test_the_next_batch_waits_for_the_acknowledgement_of_the_one_in_flight() -> None:
    lane = lane_with(1, 1)
    in_flight = lane.next()
    assert lane.next() is None
    assert lane.in_flight is in_flight
    lane.acknowledged()
    assert lane.next() is not None


def test_a_lane_with_nothing_ready_has_nothing_to_send() -> None:
    assert Lane("t", 0).next() is None
    assert Lane("t", 0).acknowledged() is None


def test_an_open_batch_without_records_is_thrown_away_when_it_is_closed() -> None:
    lane = Lane("t", 0)
    assert lane.close_open() is None
    lane.open = LaneBatch(100, 0)
    lane.due = True
    assert lane.close_open() is None
    assert [lane.open, lane.due, *lane.ready] == [None, False]
    assert lane.added == 0


def test_a_closed_batch_takes_no_more_records_and_knows_its_size() -> None:
    lane = Lane("t", 0)
    lane.open = batch_of(2)
    lane.due = True
    batch = lane.close_open()
    assert batch is not None
    assert batch.closed()  # type: ignore[no-untyped-call]
    assert [lane.open, lane.due] == [None, False]
    assert batch.bytes > 61
    assert not hasattr(batch, "add")


def test_so_many_batches_wait_at_most() -> None:
    assert not lane_with(*[1] * (MAX_READY - 1)).blocked
    lane = lane_with(*[1] * MAX_READY)
    assert lane.blocked
    lane.next()
    assert not lane.blocked  # the one in flight is not waiting


def test_records_are_counted_when_they_come_and_when_they_are_settled() -> None:
    lane = lane_with(3, 4)
    lane.open = batch_of(5)
    assert (lane.added, lane.settled) == (12, 0)
    lane.next()
    assert lane.settled == 0
    lane.acknowledged()
    assert (lane.added, lane.settled) == (12, 3)


# --- identity


def test_the_first_batch_takes_the_fresh_identity_at_sequence_zero() -> None:
    lane, batch = Lane("t", 0), batch_of(3)
    lane.sequence = 99  # left over from nowhere
    lane.identify(batch, FRESH)
    assert batch.identity == (7, 0, 0)
    assert (lane.identity, lane.sequence) == (FRESH, 3)


def test_the_identity_belongs_to_the_lane_and_not_to_the_session_that_comes_next() -> None:
    lane, first, second = Lane("t", 0), batch_of(3), batch_of(2)
    lane.identify(first, FRESH)
    lane.identify(second, Identity(8, 5))
    assert second.identity == (7, 0, 3)


def test_a_batch_that_is_sent_again_keeps_its_identity_and_takes_no_sequence() -> None:
    lane, batch = Lane("t", 0), batch_of(3)
    for _ in range(3):
        lane.identify(batch, FRESH)
    assert batch.identity == (7, 0, 0)
    assert lane.sequence == 3


def test_sequences_wrap_to_zero_behind_two_to_the_31st_minus_one() -> None:
    lane = Lane("t", 0)
    lane.identity, lane.sequence = FRESH, SEQUENCE_MODULUS - 3
    assert bases(lane, [5, 1]) == [SEQUENCE_MODULUS - 3, 2]
    lane.sequence = SEQUENCE_MODULUS - 5
    assert bases(lane, [5, 1]) == [SEQUENCE_MODULUS - 5, 0]
    lane.sequence = SEQUENCE_MODULUS - 1
    assert bases(lane, [1, 1]) == [SEQUENCE_MODULUS - 1, 0]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, SEQUENCE_MODULUS - 1))
def test_each_batch_follows_the_one_before_without_a_gap(counts: list[int], start: int) -> None:
    lane = Lane("t", 0)
    lane.identity, lane.sequence = FRESH, start
    found = bases(lane, counts)
    assert found[0] == start
    for base, count, following in zip(found, counts, [*found[1:], lane.sequence], strict=True):
        assert following == (base + count) % SEQUENCE_MODULUS
        assert 0 <= base < SEQUENCE_MODULUS


def test_a_renewed_lane_goes_on_with_the_next_epoch_from_zero() -> None:
    lane, first, second, third = Lane("t", 0), batch_of(3), batch_of(2), batch_of(4)
    lane.identify(first, FRESH)
    lane.identify(second, FRESH)
    lane.renew(second, Identity(99, 9))
    assert lane.identity == Identity(7, 1)
    assert second.identity == (7, 1, 0)
    lane.identify(third, FRESH)
    assert third.identity == (7, 1, 2)


def test_a_renewed_batch_is_the_same_but_for_its_identity() -> None:
    """It was built already: identity and checksum are changed in the bytes, the records stay."""
    lane = lane_with(3)
    batch = lane.next()
    assert batch is not None
    lane.identify(batch, FRESH)
    before = bytes(batch._build())
    lane.renew(batch, FRESH)
    after = bytes(batch._build())
    assert before != after
    assert (before[:17], before[21:43], before[57:]) == (after[:17], after[21:43], after[57:])


def test_epochs_that_are_used_up_end_in_a_fresh_identity() -> None:
    lane, batch = Lane("t", 0), batch_of(1)
    lane.identity = Identity(7, EPOCH_LIMIT - 2)
    lane.renew(batch, Identity(8, 0))
    assert batch.identity == (7, EPOCH_LIMIT - 1, 0)
    assert lane.used_up == 7
    lane.renew(batch, Identity(8, 0))
    assert batch.identity == (8, 0, 0)


def test_a_producer_id_whose_epochs_are_used_up_is_remembered_until_there_is_another() -> None:
    """The session's own may be the very one: the broker would refuse all of its epochs, from 0 on."""
    assert Lane("t", 0).used_up is None
    lane = Lane("t", 0)
    lane.identify(batch_of(1), Identity(7, EPOCH_LIMIT - 1))
    lane.begin_anew()
    assert (lane.identity, lane.used_up) == (None, 7)
    lane.identify(batch_of(1), Identity(8, EPOCH_LIMIT - 2))
    lane.begin_anew()
    assert (lane.identity, lane.used_up) == (Identity(8, EPOCH_LIMIT - 1), 8)


def test_a_lane_without_an_identity_is_renewed_with_the_fresh_one() -> None:
    lane, batch = Lane("t", 0), batch_of(2)
    lane.renew(batch, FRESH)
    assert (lane.identity, batch.identity, lane.sequence) == (FRESH, (7, 0, 0), 2)


def test_an_identity_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        FRESH.epoch = 1  # type: ignore[misc]


# --- the end of a lane


def test_whoever_waits_for_a_halted_lane_is_told_where_and_why() -> None:
    lane = Lane("orders", 3)
    lane.halt("MessageSizeTooLargeError: 5000", MEND_TOPIC)
    error = lane_halted(lane)
    assert isinstance(error, PermanentDeliveryError)
    assert isinstance(error, DeliveryError)
    assert isinstance(error, KafkaError)
    assert error.persisted == "not"
    assert str(error).endswith("topic=orders partition=3 error=MessageSizeTooLargeError: 5000")
    assert str(error).startswith(f"the lane is halted and its records stay in the ring: {MEND_TOPIC} topic=")


def test_a_record_of_a_halted_lane_is_possibly_in_kafka_where_its_batch_is() -> None:
    lane, sent, part = Lane("orders", 3), batch_of(1), batch_of(1)
    lane.halt("MessageSizeTooLargeError: 5000", MEND_TOPIC)
    assert lane_halted(lane, sent).persisted == "not"
    sent.possibly = True
    part.doubtful = True
    assert [lane_halted(lane, batch).persisted for batch in (sent, part)] == ["possibly", "possibly"]


def test_who_waits_behind_what_halted_a_lane_is_told_that_it_is_delivered_later() -> None:
    lane, batch = Lane("orders", 3), batch_of(1)
    lane.halt("MessageSizeTooLargeError: 5000", MEND_TOPIC)
    error = lane_waits(lane)
    assert isinstance(error, DeliveryPendingError)
    assert "do not publish it again, it is delivered after the next start" in str(error)
    assert str(error).endswith(f"{MEND_TOPIC} topic=orders partition=3 error=MessageSizeTooLargeError: 5000")
    assert error.persisted == "not"
    batch.possibly = True
    assert lane_waits(lane, batch).persisted == "possibly"


def test_only_what_was_halted_for_want_of_room_goes_on_by_itself() -> None:
    lane = Lane("orders", 3)
    resumes = []
    for remedy in (MEND_TOPIC, MAKE_ROOM, START_ANEW):
        lane.halt("a reason", remedy)
        resumes.append(lane.resumes)
    assert resumes == [False, True, False]


def test_a_lane_that_goes_on_is_as_if_it_had_never_halted() -> None:
    lane = Lane("orders", 3)
    lane.halt("no room", MAKE_ROOM)
    lane.go_on()
    assert (lane.halted, lane.remedy, lane.resumes) == (None, "", False)


# --- what the last process had in flight


def test_a_lane_sends_nothing_before_what_was_in_flight_is_built_again() -> None:
    lane = lane_with(2)
    lane.resume(120, 4)
    lane.hold(3)
    assert lane.next() is None
    assert lane.added == 5
    resumed = batch_of(3)
    resumed.identify(9, 3, 47)
    lane.release(resumed, Identity(9, 8))
    assert lane.next() is resumed
    lane.identify(resumed, FRESH)
    assert resumed.identity == (9, 3, 47)
    lane.acknowledged(118)
    assert (lane.settled, lane.offset) == (3, 120)
    following = lane.next()
    assert following is not None
    lane.identify(following, FRESH)
    assert following.identity == (FRESH.producer_id, FRESH.epoch, 0)


def with_resumed(fence: Identity | None) -> tuple[Lane, LaneBatch]:
    lane, resumed = Lane("t", 0), batch_of(3)
    lane.hold(3)
    resumed.identify(9, 3, 47)
    resumed.possibly = True
    lane.release(resumed, fence)
    assert lane.next() is resumed
    return lane, resumed


@pytest.mark.parametrize("attempted", [False, True])
def test_what_was_in_flight_and_is_not_sent_again_is_fenced_by_what_follows(*, attempted: bool) -> None:
    lane, resumed = with_resumed(Identity(9, 8))
    if attempted:
        lane.identify(resumed, FRESH)
    lane.part_with(resumed)
    lane.parted(3, None)
    assert bases(lane, [2, 2]) == [0, 2]
    assert lane.identity == Identity(9, 8)
    lane.part_with(unanswered(lane))
    assert lane.identity == Identity(9, 9), "and so is that in its turn"


def unanswered(lane: Lane) -> LaneBatch:
    batch = batch_of(1)
    lane.identify(batch, FRESH)
    batch.possibly = True
    return batch


@pytest.mark.parametrize("attempted", [False, True])
def test_what_was_in_flight_and_is_refused_for_good_is_fenced_too(*, attempted: bool) -> None:
    lane, resumed = with_resumed(Identity(9, 8))
    if attempted:
        lane.identify(resumed, FRESH)
    lane.take_back(resumed, FRESH)
    assert (bases(lane, [2]), lane.identity) == ([0], Identity(9, 8))


def test_without_an_epoch_for_a_fence_what_follows_has_the_fresh_identity() -> None:
    lane, resumed = with_resumed(Identity(9, EPOCH_LIMIT - 1).fence(random.uniform))
    lane.part_with(resumed)
    assert (bases(lane, [2]), lane.identity) == ([0], FRESH)


def test_where_the_broker_follows_no_epoch_of_the_last_process_none_is_tried_twice() -> None:
    """A copy of the directory has used it, too."""
    lane, resumed = with_resumed(Identity(9, 8))
    lane.part_with(resumed)
    following = batch_of(2)
    lane.identify(following, FRESH)
    lane.overtaken()
    lane.renew(following, FRESH)
    assert following.identity == (FRESH.producer_id, FRESH.epoch, 0)
    lane.overtaken()
    lane.renew(following, FRESH)
    assert following.identity == (FRESH.producer_id, FRESH.epoch + 1, 0), "but of its own, as always"


@given(epoch=st.integers(0, EPOCH_LIMIT - 1), share=st.floats(0, 1))
def test_where_somebody_uses_a_later_epoch_the_next_one_is_theirs_and_not_taken(epoch: int, share: float) -> None:
    lane = lane_with(1)
    batch = lane.next()
    assert batch is not None
    lane.identify(batch, Identity(9, epoch))
    lane.overtaken(lambda least, most: least + share * (most - least))
    used_up = lane.used_up
    lane.renew(batch, FRESH)
    assert lane.identity is not None
    assert lane.identity.producer_id == (9 if used_up is None else FRESH.producer_id)
    assert used_up is not None or epoch + 1 < lane.identity.epoch < EPOCH_LIMIT
    assert batch.identity == (lane.identity.producer_id, lane.identity.epoch, 0)


@given(epoch=st.integers(0, EPOCH_LIMIT - 2), share=st.floats(0, 1))
def test_a_fence_is_a_later_epoch_and_leaves_some(epoch: int, share: float) -> None:
    fence = Identity(9, epoch).fence(lambda least, most: least + share * (most - least))
    assert fence is not None
    assert fence.producer_id == 9
    assert epoch < fence.epoch < EPOCH_LIMIT
    assert EPOCH_LIMIT - 1 - fence.epoch >= (EPOCH_LIMIT - 1 - epoch) // 2 - 1


def test_the_offset_of_an_acknowledgement_that_does_not_tell_is_not_taken_over() -> None:
    lane = lane_with(1)
    lane.offset = 7
    lane.next()
    lane.acknowledged(-1)
    assert lane.offset == 7


def test_a_lane_that_begins_anew_takes_the_next_epoch_for_its_next_batch() -> None:
    lane = lane_with()
    lane.identity = Identity(9, 3)
    lane.sequence = 50
    lane.begin_anew()
    assert bases(lane, [2, 2]) == [0, 2]
    assert lane.identity == Identity(9, 4)


def test_a_lane_whose_partition_is_gone_sends_nothing_and_gives_its_records_to_others_which_send_them_in_turn() -> None:
    gone, other = lane_with(2, 3), lane_with(1)
    gone.identity, gone.sequence, gone.leaves = Identity(9, 3), 50, True
    assert gone.next() is None
    first, second, rest = batch_of(2), batch_of(2), batch_of(1)
    gone.leaves = False
    gone.give_away([None, rest])
    other.take_over(first)
    other.take_over(second)
    assert list(other.ready)[1:] == [first, second]
    assert (other.added - other.settled, gone.added - gone.settled) == (5, 1)
    assert gone.next() is rest
    gone.identify(rest, FRESH)
    assert rest.identity == (9, 4, 0)


# --- in transactions


def test_begun_anew_what_was_acknowledged_goes_first_in_its_order_and_under_another_identity() -> None:
    lane = lane_with(1, 2, 3, 4)
    back = []
    for offset in (10, 11):
        batch = lane.next()
        assert batch is not None
        lane.identify(batch, FRESH)
        batch.possibly = True
        lane.acknowledged(offset)
        back.append(batch)
    third = lane.next()
    assert third is not None
    lane.identify(third, FRESH)
    lane.leaves = True
    lane.put_back()
    assert (lane.next(), lane.settled, lane.added) == (None, 3, 10)
    lane.rewind(back)
    assert (lane.settled, lane.added) == (0, 10)
    assert [batch.count for batch in lane.ready] == [1, 2, 3, 4]
    assert [(batch.identity, batch.possibly) for batch in lane.ready] == [(None, False)] * 4
    assert bases_of(lane, Identity(7, 1)) == [(7, 1, 0), (7, 1, 1), (7, 1, 3), (7, 1, 6)]


def test_a_lane_without_anything_acknowledged_begins_anew_with_what_is_ready() -> None:
    lane = lane_with(2)
    (batch,) = lane.ready
    lane.identify(batch, FRESH)
    lane.leaves = True
    lane.rewind([])
    assert (lane.identity, lane.settled, lane.leaves) == (None, 0, False)
    assert bases_of(lane, Identity(8, 0)) == [(8, 0, 0)]


def bases_of(lane: Lane, fresh: Identity) -> list[tuple[int, int, int] | None]:
    """What its batches are sent under, one after the other."""
    identities = []
    while (batch := lane.next()) is not None:
        lane.identify(batch, fresh)
        identities.append(batch.identity)
        lane.acknowledged()
    return identities
