"""All tests here have one broker and three, whatever they call them, and find them as if nobody had been there."""

from tests.crash.conftest import mend
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster


def test_who_asks_for_a_broker_gets_the_one_that_others_kill(
    kafka: Cluster, mortal: KafkaCluster, kafka3: Cluster, mortal3: KafkaCluster
) -> None:
    assert kafka is mortal
    assert kafka3 is mortal3


def test_behind_a_test_no_node_stands_still_and_no_topic_is_there(lone: KafkaCluster) -> None:
    lone.create_topic("left", 6)
    lone.nodes[0].pause()
    mend(lone)
    assert not lone.nodes[0].paused
    views = admin.run(admin.ask_every_node(lone.bootstrap_servers, "left"))
    assert not any(view.leaders for view in views.values())
