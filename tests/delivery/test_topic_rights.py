"""Which topics Kafka refuses, what is to be done about it, and when it is asked again."""

from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.topic_rights import TopicRights
from tests.delivery.test_backoff import even


def rights() -> TopicRights:
    return TopicRights(Backoff(0.1, 0.4, even))


def test_a_topic_that_is_refused_is_news_once_and_named_until_it_is_granted() -> None:
    made = rights()
    assert (made.topics, made.missing) == ([], "")
    assert made.refused(["b"]) == ["b"]
    assert made.refused(["a", "b"]) == ["a"]
    assert (made.topics, made.missing) == (["b", "a"], "grant Write on the topic b and on a")
    made.granted("b")
    assert (made.topics, made.missing) == (["a"], "grant Write on the topic a")
    made.granted("a")
    assert (made.topics, made.missing) == ([], "")


def test_pauses_grow_until_something_is_committed() -> None:
    made = rights()
    made.refused(["t"])
    assert [round(made.pause(), 6) for _ in range(4)] == [0.1, 0.2, 0.4, 0.4]
    made.granted("t")
    assert round(made.pause(), 6) == 0.4
    made.committed()
    assert round(made.pause(), 6) == 0.1
