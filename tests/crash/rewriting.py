"""A publisher that dies while the retry ring is rewritten: three lanes of twelve wait in it, and one stays stalled.

The partitions of two are below min.insync.replicas until their topic asks for one replica; the third one's, of another
topic, has no leader until its node is back.
"""

import os
from pathlib import Path
from typing import Any, Final

from tests.crash.judgement import Verdict
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support import admin
from tests.support.broker import KafkaCluster

__all__ = ["COPIED_AGAIN", "killed_while_rewriting"]

COPIED_AGAIN = "when a copy is copied once more"
_PARTITIONS = 6  # of each topic
_LEADERLESS = 3
_BELOW_MIN_ISR = (2, 5)
_OPTIONS: Final[dict[str, Any]] = {"max_batch_size": 16 * 1024, "slot_bytes": 1 << 16}  # the ring goes round many times
_DIES_WITHIN_S = 60.0  # it takes seconds


def killed_while_rewriting(
    cluster: KafkaCluster, directory: Path, point: str, times: int, fault: str | None = None
) -> Verdict:
    """Killed at the point, and once more while one lane is still stalled: what was not made is rewritten then, too.

    ``fault``: of the lives behind the first one. `Verdict.crashed` tells whether the point was reached.
    """
    below, leaderless = _placed_topics(cluster)
    scenario = Scenario(cluster, directory, lanes=_PARTITIONS, topic=below, beside=[leaderless])
    child = scenario.life(
        ("publish", {"count": 2_000}),
        FLUSH,
        ("wait", {}),
        ("publish", {"count": 15_000, "rate": 6_000}),
        ("wait_stalled", {"lanes": 1 + len(_BELOW_MIN_ISR)}),
        ("wait", {}),
        ("publish", {"rate": 3_000}),
        crash=(point, times),
        **_OPTIONS,
    )
    child.wait_for("wait")
    cluster.nodes[2].kill()
    child.tell()
    # On a busy machine replicas fall behind elsewhere, too, for a moment: then it is rewritten for these, and it dies.
    lives = child.comes_to("wait", times=2)
    admin.run(admin.configure_topic(cluster.bootstrap_servers, below, {"min.insync.replicas": "1"}))
    if lives:
        child.tell()
    scenario.dies(child, _DIES_WITHIN_S)

    steps: list[Step] = [("publish", {"count": 2_000, "rate": 3_000}), ("wait_stalled", {"lanes": 1}), ("wait", {})]
    child = scenario.life(*steps, fault=fault, **_OPTIONS)
    child.wait_for("wait")
    scenario.kill(child)
    cluster.heal()
    return scenario.verdict(fault=fault)


def _placed_topics(cluster: KafkaCluster) -> tuple[str, str]:
    """Two topics, on the first two nodes but for the partitions that will be stuck."""
    one, two, dies = (node.node_id for node in cluster.nodes)
    below, leaderless = (f"{what}-{os.urandom(4).hex()}" for what in ("below", "leaderless"))
    pairs = {number: [one, dies if number in _BELOW_MIN_ISR else two] for number in range(_PARTITIONS)}
    alone = {number: [dies if number == _LEADERLESS else two] for number in range(_PARTITIONS)}
    servers, config = cluster.bootstrap_servers, {"min.insync.replicas": "2"}
    admin.run(admin.create_placed_topic(servers, below, pairs, config))
    admin.run(admin.create_placed_topic(servers, leaderless, alone))
    return below, leaderless
