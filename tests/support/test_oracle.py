"""The checker itself: it must go red for each fault that is planted, and stay green for what is allowed."""

import random

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given
from hypothesis import strategies as st

from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import ID_HEADER, Accepted, Consumed, judge, read_topic

KEYS = (b"a", b"b", b"c")


def accept(count: int, *, epoch: int = 1, producer: str = "p") -> list[Accepted]:
    """Records of one epoch; the keys take turns."""
    return [
        Accepted(f"{producer}/{epoch}/{sequence}", KEYS[sequence % 3], f"{epoch}:{sequence}".encode())
        for sequence in range(1, count + 1)
    ]


def stand(*records: Accepted, partition: int = 0) -> list[Consumed]:
    """The records in this order in one partition."""
    return [
        Consumed(
            partition,
            offset,
            each.key,
            each.value,
            ((ID_HEADER, each.record_id.encode()),),
            0,
            each.record_id,
        )
        for offset, each in enumerate(records)
    ]


def test_green_when_everything_is_there_in_order() -> None:
    accepted = [*accept(30), *accept(30, epoch=2)]
    verdict = judge(accepted, stand(*accepted), whole_lanes=True)
    assert verdict.ok
    assert (verdict.accepted, verdict.delivered, verdict.repeated, verdict.foreign) == (60, 60, 0, [])
    assert str(verdict) == "ok: accepted=60 delivered=60 repeated=0"


def test_the_partition_log_counts_not_the_order_of_reading() -> None:
    accepted = accept(30)
    consumed = stand(*accepted)
    random.Random(1).shuffle(consumed)
    assert judge(accepted, consumed).ok


def test_red_for_a_missing_record() -> None:
    accepted = accept(30)
    verdict = judge(accepted, stand(*accepted[:7], *accepted[8:]))
    assert not verdict.ok
    assert verdict.missing == ["p/1/8"]
    assert verdict.delivered == 29
    assert "missing (1): p/1/8" in str(verdict)


def test_a_repeat_does_not_make_up_for_a_missing_record() -> None:
    accepted = accept(30)
    verdict = judge(accepted, stand(*accepted[:7], accepted[6], *accepted[8:]))
    assert not verdict.ok
    assert verdict.missing == ["p/1/8"]
    assert verdict.repeated == 1


def test_repeats_are_counted_and_allowed() -> None:
    accepted = accept(30)
    verdict = judge(accepted, stand(*accepted, *accepted[20:]))
    assert verdict.ok
    assert verdict.repeated == 10


def test_red_for_two_records_of_a_key_that_changed_places() -> None:
    accepted = accept(30)
    swapped = [*accepted]
    swapped[3], swapped[6] = swapped[6], swapped[3]  # three keys take turns: both have the same one
    verdict = judge(accepted, stand(*swapped))
    assert not verdict.ok
    # 4 stands after 7; nothing else is displaced
    assert [(late.record_id, late.after) for late in verdict.out_of_order] == [("p/1/4", "p/1/7")]
    assert "p/1/4 behind p/1/7" in str(verdict)


def test_records_of_different_keys_may_change_places_unless_whole_lanes_are_judged() -> None:
    accepted = accept(30)
    swapped = [*accepted]
    swapped[3], swapped[4] = swapped[4], swapped[3]
    assert judge(accepted, stand(*swapped)).ok
    assert [late.record_id for late in judge(accepted, stand(*swapped), whole_lanes=True).out_of_order] == ["p/1/4"]


def test_red_for_an_old_epoch_after_a_new_one() -> None:
    old, new = accept(3), accept(3, epoch=2)
    verdict = judge([*old, *new], stand(*new, *old))
    assert {late.record_id for late in verdict.out_of_order} == {"p/1/1", "p/1/2", "p/1/3"}


def test_the_starts_of_one_producer_have_ids_of_their_own_and_one_order() -> None:
    old, new = accept(3, producer="abcdefgqrstuv"), accept(3, epoch=2, producer="abcdefgwxyz23")
    assert judge([*old, *new], stand(*old, *new)).ok
    assert len(judge([*old, *new], stand(*new, *old)).out_of_order) == 3


def test_sequences_are_numbers_not_text() -> None:
    accepted = accept(12)
    assert judge(accepted, stand(*accepted)).ok  # "p/1/10" sorts before "p/1/9" as text


def test_red_for_ids_that_do_not_follow_the_order_of_acceptance() -> None:
    accepted = accept(6)
    told = [*accepted[3:], *accepted[:3]]
    assert not judge(told, stand(*accepted)).ok
    assert not judge(told, stand(*told)).ok


def test_producers_are_judged_each_for_itself() -> None:
    one, other = accept(9), accept(9, producer="q")
    assert judge([*one, *other], stand(*other, *one)).ok


def test_an_unconfirmed_record_is_foreign_and_its_place_is_judged() -> None:
    records = accept(9)
    unconfirmed = records[6]
    accepted = [each for each in records if each is not unconfirmed]
    in_its_place = judge(accepted, stand(*records))
    assert in_its_place.ok
    assert in_its_place.foreign == ["p/1/7"]
    too_early = judge(accepted, stand(unconfirmed, *accepted))
    assert not too_early.ok
    assert {late.after for late in too_early.out_of_order} == {"p/1/7"}


def test_records_with_a_named_partition_are_one_lane_whatever_their_keys() -> None:
    accepted = [each._replace(partition=4, key=None if number % 2 else b"k") for number, each in enumerate(accept(8))]
    assert judge(accepted, stand(*accepted, partition=4)).ok
    swapped = [accepted[1], accepted[0], *accepted[2:]]
    assert [late.record_id for late in judge(accepted, stand(*swapped, partition=4)).out_of_order] == ["p/1/1"]


def test_red_for_the_wrong_partition() -> None:
    accepted = [each._replace(partition=4) for each in accept(3)]
    assert {wrong.record_id for wrong in judge(accepted, stand(*accepted, partition=3)).wrong} == {
        each.record_id for each in accepted
    }


def test_records_without_key_and_partition_have_no_order() -> None:
    accepted = [each._replace(key=None) for each in accept(9)]
    assert judge(accepted, stand(*reversed(accepted)), whole_lanes=True).ok


@pytest.mark.parametrize(
    "change", [{"value": b"other"}, {"value": None}, {"value": b""}, {"key": b"z"}, {"key": None}], ids=str
)
def test_red_for_an_altered_record(change: dict[str, bytes | None]) -> None:
    accepted = accept(9)
    consumed = stand(*accepted)
    consumed[4] = consumed[4]._replace(**change)  # type: ignore[arg-type]
    verdict = judge(accepted, consumed)
    assert not verdict.ok
    assert [wrong.record_id for wrong in verdict.wrong] == ["p/1/5"]


def test_red_where_only_the_repeat_is_altered() -> None:
    accepted = accept(9)
    verdict = judge(accepted, stand(*accepted, accepted[8]._replace(value=b"other")))
    assert [wrong.record_id for wrong in verdict.wrong] == ["p/1/9"]


def test_red_for_a_null_value_that_became_empty() -> None:
    accepted = [Accepted("p/1/1", b"k", None)]
    assert not judge(accepted, stand(accepted[0]._replace(value=b""))).ok


def test_red_for_a_key_in_two_partitions() -> None:
    accepted = accept(9)
    verdict = judge(accepted, [*stand(*accepted[:5]), *stand(*accepted[5:], partition=1)])
    assert not verdict.ok
    assert set(verdict.scattered) == set(KEYS)


def test_red_for_an_id_that_was_given_out_twice() -> None:
    accepted = [*accept(3), *accept(1)]
    assert [wrong.record_id for wrong in judge(accepted, stand(*accept(3))).wrong] == ["p/1/1"]


def test_a_record_without_an_id_is_foreign() -> None:
    accepted = accept(3)
    stranger = Consumed(0, 99, b"a", b"x", (), 0, None)
    assert judge(accepted, [*stand(*accepted), stranger]).foreign == ["(without an id: partition=0 offset=99)"]


@given(st.permutations(range(12)))
def test_green_for_exactly_the_orders_that_keep_each_key_in_order(order: list[int]) -> None:
    accepted = accept(12)
    arrived = [accepted[number] for number in order]
    kept = all(
        [each for each in arrived if each.key == key] == [each for each in accepted if each.key == key] for key in KEYS
    )
    assert judge(accepted, stand(*arrived)).ok == kept


@pytest.mark.asyncio
async def test_reading_ends_after_the_markers_of_transactions(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka, partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)
    await producer.start()
    try:
        for value, commit in ((b"kept", True), (b"aborted", False)):
            await producer.begin_transaction()
            await producer.send_and_wait(name, value, headers=[(ID_HEADER, b"p/1/1")])
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()
    everything = await read_topic(kafka.bootstrap_servers, name)
    committed = await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed")
    assert [record.value for record in everything] == [b"kept", b"aborted"]
    assert [record.value for record in committed] == [b"kept"]
    assert committed[0].record_id == "p/1/1"


@pytest.mark.asyncio
async def test_an_empty_topic_is_read_at_once_and_an_unknown_one_is_an_error(
    kafka: Cluster, topic: TopicFactory
) -> None:
    assert await read_topic(kafka.bootstrap_servers, topic(kafka)) == []
    with pytest.raises(TimeoutError, match="no-such-topic"):
        await read_topic(kafka.bootstrap_servers, "no-such-topic", timeout_s=1)
