"""Where records were to go is gone: the topic of half of a backlog is deleted, or the cluster is another one.

Lives of one directory find that, one after the other, and are killed; each publishes more. Then the topic is made anew
while one of them runs, or the right cluster is there again. What happens, and when, is drawn from a seed.
"""

import os
import random
import time
from pathlib import Path
from typing import Final

from tests.crash.judgement import Verdict
from tests.crash.lives import Child, ChildFailedError
from tests.crash.scenario import FLUSH, Scenario
from tests.support import admin
from tests.support.broker import KafkaCluster

__all__ = ["KINDS", "TOPICS_ARE_MADE", "kind_of", "play"]

KINDS: Final = ("topic", "cluster")
"""Of the seeds, in turns."""
TOPICS_ARE_MADE: Final = {"auto.create.topics.enable": "false"}
"""What the brokers of ``topic`` are told: none appears because somebody asks for it."""

_LANES = 6
_BACKLOG = 5_000, 20_000  # records, half of them for the topic that is deleted
_LIVES = 1, 3  # that find out
_LIVES_S = 0.2, 4.0  # one may come to nothing, another one to what it moves out of the way
_RATE = 1_000  # records a second of these
_MADE_S = 0.0, 3.0  # of the last one, until the topic is there again; it is looked for every 10 s at most
_LAST = 15_000  # records of it: it is made in the middle of them
_AT_ONCE = 5_000  # records a second while the right cluster is there: some are in flight at any time
_ANSWERED_S = 0.3, 2.0
_UNANSWERED_S = 0.2  # that brokers stand still before a kill: what is in flight has no answer then


def kind_of(seed: int) -> str:
    """What is gone with this seed."""
    return KINDS[seed % len(KINDS)]


def play(cluster: KafkaCluster, other: KafkaCluster, directory: Path, seed: int) -> Verdict:
    """Let it happen, and judge.

    Raises:
        ChildFailedError: a process failed, or the other cluster got something.

    """
    rng = random.Random(seed)
    try:
        if kind_of(seed) == "topic":
            return _without_topic(cluster, directory, rng)
        return _at_another_cluster(cluster, other, directory, rng)
    finally:
        cluster.heal()


def _without_topic(cluster: KafkaCluster, directory: Path, rng: random.Random) -> Verdict:
    well, gone = (f"destinations-{kind}-{os.urandom(4).hex()}" for kind in ("well", "gone"))
    for topic in (well, gone):
        cluster.create_topic(topic, _LANES)
    scenario = Scenario(cluster, directory, lanes=_LANES, topic=well, beside=[gone])
    for node in cluster.nodes:
        node.kill()
    backlog = scenario.life(("publish", {"count": rng.randint(*_BACKLOG)}), ("wait", {}))
    backlog.wait_for("wait")
    scenario.kill(backlog)
    cluster.heal()
    admin.run(admin.delete_topic_everywhere(cluster.bootstrap_servers, gone))
    for _ in range(rng.randint(*_LIVES)):
        _killed(scenario, scenario.life(("publish", {"rate": _RATE})), rng)
    last = scenario.life(("publish", {"count": _LAST, "rate": _RATE}), FLUSH)
    last.wait_for("publish")
    time.sleep(rng.uniform(*_MADE_S))
    cluster.create_topic(gone, _LANES)
    scenario.finish(last)
    return scenario.examine()


def _at_another_cluster(cluster: KafkaCluster, other: KafkaCluster, directory: Path, rng: random.Random) -> Verdict:
    scenario = Scenario(cluster, directory, lanes=_LANES)
    other.create_topic(scenario.topic, _LANES)
    first = scenario.life(("publish", {"count": 10 * _LANES}), FLUSH, ("publish", {"rate": _AT_ONCE}))
    first.wait_for("publish", times=2)
    time.sleep(rng.uniform(*_ANSWERED_S))
    if rng.random() < 0.5:
        for node in cluster.nodes:
            node.pause()
        time.sleep(_UNANSWERED_S)
    scenario.kill(first)
    cluster.heal()
    for _ in range(rng.randint(*_LIVES)):
        child = scenario.life(("publish", {"rate": _RATE}), servers=other.bootstrap_servers)
        _killed(scenario, child, rng)
    strays = admin.run(admin.count_records(other.bootstrap_servers, scenario.topic, _LANES))
    if strays:
        raise ChildFailedError(f"the other cluster got something: records={strays}")
    return scenario.verdict()


def _killed(scenario: Scenario, child: Child, rng: random.Random) -> None:
    child.wait_for("publish")
    time.sleep(rng.uniform(*_LIVES_S))
    scenario.kill(child)
