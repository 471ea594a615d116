"""Which lane a record goes to, with the cluster's metadata played by dictionaries."""

import itertools
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.delivery import router as module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import MAKE_ROOM, MAX_READY, START_ANEW, Lane
from aiorecover.delivery.router import Partitioner, Router


class Metadata:
    """What the session knows."""

    def __init__(self, **counts: int) -> None:
        self.known = {name: frozenset(range(count)) for name, count in counts.items()}
        self.without_leader: set[int] = set()
        self.wanted: list[str] = []

    def partitions(self, name: str) -> frozenset[int]:
        return self.known.get(name, frozenset())

    def available(self, name: str) -> frozenset[int]:
        return self.partitions(name) - self.without_leader

    def router(self, partitioner: Partitioner | None = None) -> Router:
        return Router(self.partitions, self.available, self.wanted.append, partitioner)


class Two:
    """An integer as numpy's are."""

    def __index__(self) -> int:
        return 2


def partition_of(router: Router, name: str, key: bytes | None = None, partition: int | None = None) -> int | None:
    lane = router.lane(router.topic(name), key, partition)
    return lane.partition if lane is not None else None


def unknown(router: Router) -> list[str]:
    return [topic.name for topic in router.topics.values() if topic.count == 0]


def fill(lane: Lane) -> None:
    lane.ready.extend(LaneBatch(100, 0) for _ in range(MAX_READY))
    assert lane.blocked


# --- topics


def test_an_unknown_topic_has_no_lane_and_is_asked_for_once() -> None:
    metadata = Metadata()
    router = metadata.router()
    for key, partition in ((b"k", None), (None, None), (None, 0)):
        assert partition_of(router, "later", key, partition) is None
    assert metadata.wanted == ["later"]
    assert unknown(router) == ["later"]
    assert router.lanes() == []


def test_a_topic_is_open_once_the_metadata_knows_it() -> None:
    metadata = Metadata()
    router = metadata.router()
    assert partition_of(router, "t", None, 1) is None
    assert router.refresh() is False
    metadata.known["t"] = frozenset({0, 1})
    assert router.refresh() is True
    assert router.refresh() is False
    assert partition_of(router, "t", None, 1) == 1
    assert unknown(router) == []


def test_every_topic_is_looked_at_even_when_the_first_one_changed() -> None:
    metadata = Metadata()
    router = metadata.router()
    for name in ("a", "b", "c"):
        router.topic(name)
    metadata.known.update(a=frozenset({0}), c=frozenset({0}))
    assert router.refresh() is True
    assert unknown(router) == ["b"]


def test_a_topic_that_we_may_not_see_stays_unknown() -> None:
    def refused(name: str) -> frozenset[int]:
        raise TopicAuthorizationFailedError(name)

    router = Router(refused, refused, lambda name: None, None)
    assert partition_of(router, "secret", b"k") is None
    assert router.refresh() is False


def test_a_topic_never_shrinks_by_what_a_lagging_broker_says() -> None:
    metadata = Metadata(t=3)
    router = metadata.router()
    assert partition_of(router, "t", None, 2) == 2
    metadata.known["t"] = frozenset({0})
    assert router.refresh() is False
    assert partition_of(router, "t", None, 2) == 2


def test_lanes_are_made_once_and_never_shared_between_topics() -> None:
    router = Metadata(a=2, b=2).router()
    lanes = [router.lane(router.topic(name), None, partition) for name in ("a", "b") for partition in (0, 1, 0)]
    assert len({id(lane) for lane in lanes}) == 4
    assert sorted((lane.topic, lane.partition) for lane in router.lanes()) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


# --- explicit partitions and keys


def test_a_named_partition_is_taken_whatever_the_key_says() -> None:
    router = Metadata(t=6).router()
    assert [partition_of(router, "t", b"same", number) for number in range(6)] == list(range(6))


def test_a_partition_that_does_not_exist_has_no_lane_until_it_does() -> None:
    metadata = Metadata(t=2)
    router = metadata.router()
    assert partition_of(router, "t", None, 2) is None
    metadata.known["t"] = frozenset(range(3))
    router.refresh()
    assert partition_of(router, "t", None, 2) == 2


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 20))
def test_keys_go_where_aiokafka_sends_them(keys: list[bytes], count: int) -> None:
    router = Metadata(t=count).router()
    everyone = list(range(count))
    for key in keys * 2:  # the second time from the cache
        assert partition_of(router, "t", key) == DefaultPartitioner()(key, everyone, everyone)


def test_an_empty_key_is_a_key() -> None:
    router = Metadata(t=6).router()
    assert len({partition_of(router, "t", b"") for _ in range(20)}) == 1
    assert partition_of(router, "t", b"") == DefaultPartitioner()(b"", list(range(6)), list(range(6)))


def test_a_key_s_partition_does_not_depend_on_who_has_a_leader_at_the_moment() -> None:
    metadata = Metadata(t=6)
    before = partition_of(metadata.router(), "t", b"key")
    metadata.without_leader = set(range(6))
    assert partition_of(metadata.router(), "t", b"key") == before


def test_keys_are_spread_anew_when_the_topic_grows() -> None:
    metadata = Metadata(t=2)
    router = metadata.router()
    keys = [b"%d" % number for number in range(100)]
    assert {partition_of(router, "t", key) for key in keys} == {0, 1}
    metadata.known["t"] = frozenset(range(12))
    router.refresh()
    everyone = list(range(12))
    assert [partition_of(router, "t", key) for key in keys] == [
        DefaultPartitioner()(key, everyone, everyone) for key in keys
    ]


def test_the_remembered_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_CACHE", 10)
    router = Metadata(t=6).router()
    for number in range(1000):
        partition_of(router, "t", b"%d" % number)
        assert len(router.topic("t").by_key) <= 10


# --- records without a key


def test_records_without_a_key_stick_to_one_partition_until_its_batch_is_closed() -> None:
    router = Metadata(t=3).router()
    lane = router.lane(router.topic("t"), None, None)
    assert lane is not None
    assert all(router.lane(router.topic("t"), None, None) is lane for _ in range(100))
    router.rotate(lane)
    assert router.lane(router.topic("t"), None, None) is not lane


def test_records_without_a_key_visit_every_partition_in_turn() -> None:
    router = Metadata(t=3).router()
    visited = []
    for _ in range(7):
        lane = router.lane(router.topic("t"), None, None)
        assert lane is not None
        visited.append(lane.partition)
        router.rotate(lane)
    assert visited == [0, 1, 2, 0, 1, 2, 0]


def test_a_batch_closed_in_another_lane_does_not_move_the_run() -> None:
    router = Metadata(t=3).router()
    lane = router.lane(router.topic("t"), None, None)
    other = router.lane(router.topic("t"), None, 2)
    assert other is not None
    router.rotate(other)
    assert router.lane(router.topic("t"), None, None) is lane


@pytest.mark.parametrize("trouble", ["halted", "blocked"])
def test_records_without_a_key_leave_a_lane_that_takes_none(trouble: str) -> None:
    router = Metadata(t=3).router()
    lane = router.lane(router.topic("t"), None, None)
    assert lane is not None
    if trouble == "halted":
        lane.halted = "refused"
        router.forget(lane)
    else:
        fill(lane)
        router.rotate(lane)  # it became full by closing a batch
    for _ in range(10):
        following = router.lane(router.topic("t"), None, None)
        assert following is not None
        assert following is not lane
        router.rotate(following)


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    metadata = Metadata(t=4)
    metadata.without_leader = {0, 2}
    router = metadata.router()
    visited = set()
    for _ in range(8):
        lane = router.lane(router.topic("t"), None, None)
        assert lane is not None
        visited.add(lane.partition)
        router.rotate(lane)
    assert visited == {1, 3}


def test_where_no_partition_is_well_one_is_chosen_all_the_same() -> None:
    metadata = Metadata(t=2)
    metadata.without_leader = {0, 1}
    router = metadata.router()
    for number in (0, 1):
        lane = router.lane(router.topic("t"), None, number)
        assert lane is not None
        fill(lane)
    assert partition_of(router, "t") in {0, 1}


def test_a_halted_lane_is_forgotten_by_every_key_and_by_no_other_lane_s() -> None:
    router = Metadata(t=3).router()
    keys = [b"%d" % number for number in range(60)]
    before = {key: router.lane(router.topic("t"), key, None) for key in keys}
    for key, lane in before.items():
        assert lane is not None
        router.remember(router.topic("t"), key, lane)
    halted = before[b"0"]
    assert halted is not None
    halted.halted = "refused"
    router.forget(halted)
    assert set(router.topic("t").by_key.values()) == {lane for lane in before.values() if lane is not halted}
    assert router.lane(router.topic("t"), b"0", None) is halted  # its key's records go nowhere else


# --- a partitioner of the user's own


@pytest.mark.parametrize("remedy", ["", MAKE_ROOM])
def test_no_record_without_a_key_goes_to_a_lane_that_is_halted_for_good_while_another_one_will_go_on(
    remedy: str,
) -> None:
    router = Metadata(orders=2).router()
    gone, waiting = (router.lane(router.topic("orders"), None, partition) for partition in range(2))
    assert gone is not None
    assert waiting is not None
    gone.halt("refused", START_ANEW)
    if remedy:
        waiting.halt("no room", remedy)
    else:
        waiting.stalled = True
    assert [partition_of(router, "orders") for _ in range(4)] == [1, 1, 1, 1]


def test_a_partitioner_gets_key_partitions_and_those_with_a_leader() -> None:
    calls: list[tuple[Any, ...]] = []

    def partitioner(*given: Any) -> int:
        calls.append(given)
        return 1

    metadata = Metadata(t=3)
    metadata.without_leader = {0}
    router = metadata.router(partitioner)
    assert partition_of(router, "t", b"k") == 1
    assert partition_of(router, "t", b"k") == 1  # remembered
    assert partition_of(router, "t") == 1
    assert calls == [(b"k", [0, 1, 2], [1, 2]), (None, [0, 1, 2], [1, 2])]


def test_a_partitioner_may_do_with_its_lists_what_it_likes() -> None:
    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        random.shuffle(every)
        every.clear()
        available.pop()
        return 0

    router = Metadata(t=3).router(partitioner)
    for number in range(5):
        assert partition_of(router, "t", b"%d" % number) == 0
    assert router.topic("t").partitions == [0, 1, 2]


def test_an_answer_that_is_an_integer_of_another_kind_is_taken() -> None:
    router = Metadata(t=3).router(lambda key, every, available: Two())  # type: ignore[arg-type, return-value]
    assert partition_of(router, "t", b"12") == 2


@pytest.mark.parametrize("answer", [99, 3, -1, -3, True, False], ids=repr)
def test_a_number_that_is_no_partition_is_a_failure_whose_text_says_what_was_wrong(
    answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Folded into the topic it would put what belongs together into a partition that nobody has named."""
    router = Metadata(t=3).router(lambda key, every, available: answer)
    assert partition_of(router, "t", b"k") is None
    text = f"the partitioner must answer one of all_partitions answer={answer!r} partitions=3"
    assert router.topic("t").unplaced
    assert text in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: None,
        lambda: 1.0,
        lambda: "1",
        lambda: b"1",
        lambda: [1],
        lambda: 3,
        lambda: True,
        lambda: dict[str, int]()["nowhere"],
        lambda: 1 // 0,
        lambda: len(None),  # type: ignore[arg-type]
    ],
    ids=["None", "float", "str", "bytes", "list", "beyond", "bool", "KeyError", "ZeroDivisionError", "TypeError"],
)
def test_a_partitioner_that_fails_leaves_the_record_without_a_lane_and_is_named_in_the_log_once(
    wrong: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    router = Metadata(t=3, u=3).router(lambda key, every, available: wrong())
    for key in (b"a", b"b", None):
        assert partition_of(router, "t", key) is None
    assert router.lanes() == []
    assert partition_of(router, "t", b"a", 2) == 2  # whoever names a partition needs no partitioner
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    text = "the partitioner failed: the topic's records wait in the ring, and it is asked again topic=t"
    assert record.getMessage() == text
    assert partition_of(router, "u", b"a") is None
    assert len(caplog.records) == 2  # each topic is named


def test_a_partitioner_that_recovers_goes_on_and_a_new_failure_is_news(caplog: pytest.LogCaptureFixture) -> None:
    well = False

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if not well:
            raise LookupError(key)
        return 2

    router = Metadata(t=3).router(partitioner)
    assert partition_of(router, "t", b"a") is None
    well = True
    assert partition_of(router, "t", b"a") == 2
    well = False
    assert partition_of(router, "t", b"a") == 2  # remembered
    assert partition_of(router, "t", b"b") is None
    assert len(caplog.records) == 2


def test_a_partitioner_that_fails_between_two_batches_harms_no_batch() -> None:
    """`rotate` asks for the next run's partition when a batch is closed: that must not fail."""
    answers: list[int | None] = [1, None, 0]
    router = Metadata(t=3).router(lambda key, every, available: answers.pop(0))  # type: ignore[arg-type, return-value]
    lane = router.lane(router.topic("t"), None, None)
    assert lane is not None
    router.rotate(lane)
    assert partition_of(router, "t") == 0


@pytest.mark.parametrize("key", [b"k", None])
def test_a_partitioner_is_asked_once_however_the_lane_that_it_chose_fares(key: bytes | None) -> None:
    """A record that waits for that lane would else go to and fro, and could stand in two partitions over time."""
    turns = itertools.count()
    router = Metadata(t=3).router(lambda key, every, available: next(turns))
    lane = router.lane(router.topic("t"), key, None)
    assert lane is not None
    fill(lane)
    lane.failing = True
    router.avoid(lane)
    assert router.lane(router.topic("t"), key, None) is lane
    lane.stalled = True
    router.forget(lane)
    assert router.lane(router.topic("t"), key, None) is lane
    lane.halt("no room", MAKE_ROOM)
    router.forget(lane)
    assert router.lane(router.topic("t"), key, None) is lane
    assert next(turns) == 1


@pytest.mark.parametrize("key", [b"k", None])
def test_a_partitioner_is_asked_again_where_its_lane_takes_nothing_until_the_next_start(key: bytes | None) -> None:
    turns = itertools.count()
    router = Metadata(t=3).router(lambda key, every, available: next(turns))
    lane = router.lane(router.topic("t"), key, None)
    assert lane is not None
    lane.halt("refused", START_ANEW)
    router.forget(lane)
    assert partition_of(router, "t", key) == 1


# --- lanes that the last process had


def test_a_lane_that_goes_on_is_there_before_its_topic_is_known() -> None:
    metadata = Metadata()
    router = metadata.router()
    lane = router.resumed("t", 3)
    assert partition_of(router, "t", partition=3) is None
    assert router.lanes() == [lane]
    metadata.known["t"] = frozenset(range(4))
    assert router.lane(router.topic("t"), None, 3) is lane


def test_records_for_a_partition_that_is_no_more_wait_though_its_lane_goes_on() -> None:
    router = Metadata(t=2).router()
    router.resumed("t", 3)
    assert partition_of(router, "t", partition=3) is None
    assert partition_of(router, "t", partition=1) == 1
