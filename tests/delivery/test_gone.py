"""When a partition counts as gone, and what a router makes of that; times and metadata are handed in."""

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.gone import GONE_AFTER, SOON, UNANSWERED, Gone, numbers
from aiorecover.delivery.lane import START_ANEW, Lane
from aiorecover.delivery.router import Router

TWO, THREE = frozenset({0, 1}), frozenset({0, 1, 2})


def test_one_answer_never_decides() -> None:
    gone = Gone()
    assert not gone.lasts("t", TWO, 5.0)
    assert gone
    assert "t" in gone


def test_the_same_answer_for_long_enough_does() -> None:
    gone = Gone()
    assert not gone.lasts("t", TWO, 5.0)
    assert not gone.lasts("t", TWO, 5.0 + GONE_AFTER - 0.1)
    assert gone.lasts("t", TWO, 5.0 + GONE_AFTER)
    assert not gone


def test_another_answer_begins_anew() -> None:
    gone = Gone()
    assert not gone.lasts("t", TWO, 0.0)
    assert not gone.lasts("t", THREE, GONE_AFTER)
    assert not gone.lasts("t", THREE, GONE_AFTER + 1)
    assert gone.lasts("t", THREE, 2 * GONE_AFTER)


def test_so_does_one_in_which_nothing_was_lacking() -> None:
    gone = Gone()
    assert not gone.lasts("t", TWO, 0.0)
    gone.is_back("t")
    assert not gone
    assert not gone.lasts("t", TWO, GONE_AFTER)


def test_of_a_thousand_partitions_the_log_names_some() -> None:
    assert numbers({3, 1}) == "1,3"
    assert numbers(range(1000)) == "0,1,2,3,4,5,6,7,8,9,... (1000 of them)"


class Scene:
    """A router whose metadata and clock a test sets; ``lane`` waits for partition 2."""

    def __init__(self) -> None:
        self.known: frozenset[int] = frozenset()
        self.now = 0.0
        self.router = Router(lambda _: self.known, lambda _: self.known, lambda _: None, None, lambda: self.now)
        self.lane = self.router.resumed("t", 2)
        self.lane.ready.append(LaneBatch(100, 0))

    def answers(self, known: frozenset[int], after: float = 0.0) -> bool:
        self.known = known
        self.now += after
        return self.router.refresh()

    def routed(self) -> Lane | None:
        return self.router.lane(self.router.topic("t"), b"k", None)


def test_a_topic_opens_once_it_has_the_partition_for_which_something_was_left() -> None:
    scene = Scene()
    assert not scene.answers(TWO)
    assert scene.routed() is None
    assert scene.router.undecided
    assert scene.answers(THREE, GONE_AFTER)
    assert scene.routed() is not None
    assert (scene.router.undecided, scene.lane.leaves) == (False, False)


def test_or_once_that_is_gone_and_its_lane_was_emptied() -> None:
    scene = Scene()
    scene.answers(TWO)
    assert scene.answers(TWO, GONE_AFTER)
    assert scene.lane.leaves
    assert scene.lane.next() is None
    topic = scene.router.topic("t")
    assert (topic.closed, topic.is_open) == (True, False)
    assert scene.routed() is None
    assert scene.router.place(topic, b"k", None) is not None
    topic.closed = False
    assert scene.routed() is not None


def test_time_without_an_answer_decides_nothing() -> None:
    scene = Scene()
    scene.answers(TWO)
    scene.now += GONE_AFTER
    assert scene.routed() is None
    assert not scene.lane.leaves


def test_nothing_is_known_of_a_topic_that_kafka_does_not_name() -> None:
    scene = Scene()
    scene.answers(frozenset())
    scene.answers(frozenset(), GONE_AFTER)
    assert not scene.router.undecided
    assert not scene.lane.leaves


def test_a_lane_that_holds_nothing_or_is_halted_keeps_no_topic_closed() -> None:
    empty, halted = Scene(), Scene()
    empty.lane.ready.clear()
    halted.lane.halt("why", START_ANEW)
    for scene in (empty, halted):
        assert scene.answers(TWO)
        assert scene.routed() is not None


def test_of_an_open_topic_no_lane_leaves_and_none_is_told_of_twice() -> None:
    scene = Scene()
    scene.answers(THREE)
    for _ in range(3):
        scene.answers(TWO, GONE_AFTER)
    topic = scene.router.topic("t")
    assert (topic.count, topic.gone, topic.closed, scene.lane.leaves) == (3, frozenset({2}), False, False)
    assert not scene.router.undecided
    scene.answers(THREE)
    assert topic.gone == frozenset()


def test_what_goes_while_a_topic_is_closed_for_others_does_not_open_it() -> None:
    scene = Scene()
    other = scene.router.resumed("t", 1)
    other.ready.append(LaneBatch(100, 0))
    scene.answers(TWO)
    scene.answers(TWO, GONE_AFTER)
    topic = scene.router.topic("t")
    assert topic.closed
    scene.answers(frozenset({0}))
    scene.answers(frozenset({0}), GONE_AFTER)
    assert (topic.gone, other.leaves) == (frozenset({1, 2}), False)
    assert topic.closed, "what is in the lane of the first has found no other yet"


def test_two_answers_with_an_outage_between_decide_nothing() -> None:
    gone = Gone()
    assert not gone.lasts("t", TWO, 0.0)
    assert not gone.lasts("t", TWO, UNANSWERED)
    assert not gone.lasts("t", TWO, UNANSWERED + 10)
    assert gone.lasts("t", TWO, UNANSWERED + GONE_AFTER)


def test_who_adopts_a_directory_waits_for_it_within_a_bound_whoever_answers() -> None:
    silent, changing = Scene(), Scene()
    for scene in (silent, changing):
        assert not scene.router.deciding
        scene.answers(TWO)
        assert scene.router.deciding
    silent.now += SOON
    for known in (frozenset({0}), TWO, frozenset({0})):
        changing.answers(known, SOON / 3)
    for scene in (silent, changing):
        assert (scene.router.undecided, scene.router.deciding) == (True, False)


def test_while_it_is_not_decided_no_record_has_the_metadata_looked_at() -> None:
    scene = Scene()
    scene.answers(TWO)
    scene.known = THREE
    assert scene.routed() is None, "an answer opens it"
    assert scene.answers(THREE)
    assert scene.routed() is not None
