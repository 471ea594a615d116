"""Records that are not in Kafka any more when they are to be read: which, and what is to be done.

Spark keeps the next offset of each partition in its checkpoint. The records there may have been deleted meanwhile, as
the topic's retention says, or the topic may be another one of the same name, whose offsets began anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from aiorecover.errors import ConfigError

__all__ = ["Gone", "RecordsGoneError", "gone_in", "remade"]

_AUDIT = "`aiorecover audit --table` names what the target lacks"
_ACCEPTED = "failOnDataLoss=false, as --kafka-option or among the options of land,"
_EXPIRED = f"{_AUDIT}; {_ACCEPTED} goes on with what is still there, and leaves the rest out for good"
_REMADE = (
    f"land the new topic with a target and a checkpoint of its own; {_AUDIT}; {_ACCEPTED} goes "
    "on with these, and leaves out for good what the new topic has before the offsets that were reached in the old one"
)


@dataclass(frozen=True)
class Gone:
    """What happened, what is to be done in a landing, and where it is, as ``key=value``."""

    what: str
    remedy: str
    where: str


class RecordsGoneError(ConfigError):
    """Records that were to be read next are not in Kafka any more, or a topic was deleted and made anew."""

    def __init__(self, gone: Gone) -> None:
        super().__init__(f"{gone.what}: {gone.remedy} {gone.where}")
        self.gone = gone


def remade(topics: list[str]) -> Gone:
    """Topics that have another id than before."""
    what = "a topic was deleted and made anew since it was landed last, so what the old one had left was not landed"
    return Gone(what, _REMADE, f"{topics=}")


def gone_in(text: str) -> Gone | None:
    """What an error of Spark's Kafka source says of it; None where it says nothing of the kind."""
    for pattern, tell in _TOLD:
        if found := pattern.search(text):
            return tell(*found.groups())
    return None


def _expired(first: str, end: str, place: str) -> Gone:
    what = "Kafka has deleted records that were to be read next (its retention, or somebody), so they were not landed"
    # Spark tells only where it wanted to begin and how far it wanted to get.
    upper = f" within={first}-{int(end) - 1}" if end.isdecimal() else f" from={first}"
    return Gone(what, _EXPIRED, f"{_named(place)}{upper}")


def _shrunk(place: str, before: str, after: str) -> Gone:
    what = (
        "a partition ends before the offset that was to be read next: its topic was deleted and made anew, or it lost "
        "its end; what the old one had left was not landed"
    )
    return Gone(what, _REMADE, f"{_named(place)} next={before} end={after}")


def _deleted(places: str) -> Gone:
    what = (
        "partitions are gone that were read before: their topic was deleted, or made anew with fewer, or is not named "
        "any more; what they had left was not landed"
    )
    return Gone(what, _REMADE, f"partitions={places}")


def _begins_late(place: str, first: str) -> Gone:
    what = (
        "Kafka has deleted the first records of a new partition (its retention, or somebody), so they were not landed"
    )
    return Gone(what, _EXPIRED, f"{_named(place)} within=0-{int(first) - 1}")


def _reset(place: str, wanted: str, there: str) -> Gone:
    return _expired(wanted, there, place)


def _not_fetched(first: str, end: str | None, place: str) -> Gone:
    return _expired(first, end or "", place)


def _named(place: str) -> str:
    """Kafka's ``orders-0``."""
    topic, _, partition = place.strip(",.").rpartition("-")
    return f"topic={topic} partition={partition}"


# As the resources of Spark's connector word it (`KAFKA_DATA_LOSS`); each ends a sentence of theirs.
_TOLD: list[tuple[re.Pattern[str], Callable[..., Gone]]] = [
    (re.compile(r"Could not read records in offset \[(\S+), (\S+)\) for topic partition (\S+)"), _expired),
    (re.compile(r"Partition (\S+?)(?:'s)? offset was changed from (\d+) to (\d+)"), _shrunk),
    (re.compile(r"Starting offset for (\S+) was (\d+) but consumer reset to (\d+)"), _reset),
    (re.compile(r"Added partition (\S+) starts from (\d+) instead of 0"), _begins_late),
    (re.compile(r"Partitions (.+?) have been deleted"), _deleted),
    (re.compile(r"Cannot find initial offsets for partitions (.+?)\. They may have been deleted"), _deleted),
    # Spark 3.5:
    (
        re.compile(
            r"Cannot fetch (?:offset |records in \[)(\d+)(?:, (\d+)\))? \(GroupId: [^,]+, TopicPartition: ([^)\s]+)\)"
        ),
        _not_fetched,
    ),
    (re.compile(r"(?:Cannot find earliest offsets of )?Set\((.+?)\)(?: are gone\.|\. Some data)"), _deleted),
]
