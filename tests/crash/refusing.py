"""A publisher that dies at steps of a letter: its topic refuses some of what it publishes.

As long as the topic is compacted it takes no record without a key; once it is mended it takes all.
"""

import time
from pathlib import Path
from typing import Any, Final

from tests.crash.letters import Fates, copy_of, examine_letters, of_letters
from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario
from tests.support.admin import configure_topic, run, until_taken_without_key
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

__all__ = ["COMPACTED", "POISON", "Refusing"]

_LANES = 3
POISON = 40  # one record in so many
_RATE = 2_000
COMPACTED: Final = {"cleanup.policy": "compact"}
_MENDED: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
_DIES_WITHIN_S = 30.0  # it takes a fraction of a second
_COPIED_WITHIN_S = 10.0
_LOOK_S = 0.1


class Refusing:
    """Lives of one directory that publish to a topic that refuses some of it."""

    def __init__(self, kafka: Cluster, topic: TopicFactory, directory: Path, *, exactly_once: bool = False) -> None:
        """Make the topics; of all lives the guarantee is the same."""
        self.topic, self.dead = (topic(kafka, _LANES, config=COMPACTED), topic(kafka, 1))
        self.scenario = Scenario(kafka, directory, lanes=_LANES, topic=self.topic, exactly_once=exactly_once)
        self.servers = kafka.bootstrap_servers
        self._probe = topic(kafka, 1, config=COMPACTED)

    def life(self, *steps: Any, **task: Any) -> Child:
        """Begin another one; ``task``: as of `Scenario.life`."""
        return self.scenario.life(*steps, poison=POISON, dead_letter_topic=self.dead, **task)

    def dies_at(self, point: str, times: int) -> bool:
        """A life dies when it reaches the point for that time; whether it did."""
        child = self.life(("publish", {"rate": _RATE}), crash=(point, times))
        return self.scenario.dies(child, _DIES_WITHIN_S)

    def mend(self) -> None:
        """The topic takes what it has refused."""
        for name in (self.topic, self._probe):
            run(configure_topic(self.servers, name, _MENDED))
        run(until_taken_without_key(self.servers, self._probe))  # what is told of later is heeded later

    def fates(self) -> Fates:
        """A last life delivers, buries and copies what is left."""
        child = self.life(("publish", {"count": 2 * POISON}), FLUSH, ("wait", {}), FLUSH)
        child.wait_for("wait")
        self._wait_copied(of_letters(self.scenario))
        child.tell()
        self.scenario.finish(child)
        return examine_letters(self.scenario, self.dead)

    def _wait_copied(self, letters: dict[str, int]) -> None:
        """As `flush` waits for no copy. What is not there in time is told by who judges."""
        until = time.monotonic() + _COPIED_WITHIN_S
        while time.monotonic() < until:
            copies = run(read_topic(self.servers, self.dead, isolation_level=self.scenario.isolation_level))
            if letters.keys() <= {copy_of(copy) for copy in copies}:
                return
            time.sleep(_LOOK_S)
