"""Dead letters of lives that were killed, held against what they had published: judged by record id.

What the dead rings hold is looked at from outside once all have ended, and both topics are read with a plain consumer.
Of the equal records of a scenario those without a key are poison, as long as their topic is compacted.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiorecover.cli.inspection import inspect
from tests.crash.judgement import Verdict, examine
from tests.crash.scenario import Scenario
from tests.support.admin import run
from tests.support.oracle import Consumed, read_topic

__all__ = ["Fates", "examine_letters", "of_letters"]

COPY_OF = "aiorecover-dlq-id"
_MOST = 100_000  # letters that are looked at
_EXAMPLES = 5


@dataclass(frozen=True)
class Fates:
    """What became of each record: it stands in its topic, or is a dead letter whose copy is in the other one."""

    verdict: Verdict
    """Over all that is no dead letter."""
    letters: int
    copies: int
    came_through: int
    """Poison that stands in its topic."""
    twice: Sequence[str]
    """Letters of one record."""
    both: Sequence[str]
    """Letters of records that stand in their topic, too."""
    of_good_ones: Sequence[str]
    uncopied: Sequence[str]
    """Letters without a copy."""
    strays: Sequence[str]
    """Copies of what is neither a dead letter nor in its topic, and those that stand there twice under one id."""

    def wrong(self) -> list[str]:
        """Which promise was broken, in words."""
        return [*([] if self.verdict.ok else [str(self.verdict)]), *self._complaints()]

    def whole(self) -> Verdict:
        """The verdict, with what is wrong with letters among its complaints."""
        return replace(self.verdict, complaints=[*self.verdict.complaints, *self._complaints()])

    def _complaints(self) -> Iterator[str]:
        for what in ("twice", "both", "of_good_ones", "uncopied", "strays"):
            found = getattr(self, what)
            if found:
                yield f"{what} ({len(found)}): {'; '.join(found[:_EXAMPLES])}"

    def __str__(self) -> str:
        counts = f"letters={self.letters} copies={self.copies} came_through={self.came_through}"
        return "\n".join([f"{self.verdict} {counts}", *self._complaints()])


def of_letters(scenario: Scenario) -> dict[str, int]:
    """Whose letters the dead rings of a ``wal_dir`` hold, by record id, and how many of each; nobody has it open."""
    return Counter(letter["id"] for letter in _letters(scenario))


def examine_letters(scenario: Scenario, dead_letter_topic: str) -> Fates:
    """Judge what stands there now; everybody has stopped."""
    letters = _letters(scenario)
    dead = Counter(letter["id"] for letter in letters)
    servers, accepted = scenario.cluster.bootstrap_servers, scenario.ledger.accepted[0]
    level = scenario.isolation_level
    alive = replace(scenario.ledger, accepted={0: [one for one in accepted if one.record_id not in dead]})
    there = {one.record_id: one for one in scenario.committed()}
    copies = run(read_topic(servers, dead_letter_topic, isolation_level=level))
    copied, as_records = {copy_of(copy) for copy in copies}, Counter(copy.record_id for copy in copies)
    return Fates(
        verdict=examine(scenario.cluster, [scenario.topic], alive, isolation_level=level),
        letters=len(dead),
        copies=len(copies),
        came_through=sum(one.key is None for one in there.values()),
        twice=[name for name, times in dead.items() if times > 1],
        both=[name for name in dead if name in there],
        of_good_ones=[letter["id"] for letter in letters if letter["key"] is not None],
        uncopied=[name for name in dead if name not in copied],
        strays=[
            *(name for name in copied if name not in dead and name not in there),
            *(f"{name} as a record" for name, times in as_records.items() if times > 1),
        ],
    )


def copy_of(copy: Consumed) -> str:
    """The id of the record whose letter was copied."""
    return next((value or b"" for name, value in copy.headers if name == COPY_OF), b"").decode()


def _letters(scenario: Scenario) -> list[dict[str, Any]]:
    found = [one for home in inspect(scenario.wal_dir, _MOST) for one in home["records"]]
    return [one for one in found if one["ring"] == "dead"]
