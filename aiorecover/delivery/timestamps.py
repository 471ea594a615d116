"""Whether a timestamp that Kafka refuses was wrong from the start, or was right when its record was accepted. Pure.

A topic may refuse what is older than ``message.timestamp.before.max.ms`` when it arrives, or further ahead than
``message.timestamp.after.max.ms``. Kafka says neither which, nor which record. A record that carries the time of its
acceptance is no poison because it had to wait, or because this machine's clock is wrong: a topic that takes it is a
setting away. One with a timestamp from far away never had a chance.

What is far is not known, as the topic's limits are not. What has waited for longer than its timestamp lay before its
acceptance was refused for the wait, as far as anybody can tell; a little is always allowed.
"""

from aiorecover.wal.ages import Acceptance

SLACK = 60_000  # ms: the machines' clocks differ, and a publisher who waits for room (30 s) has taken the time before


def was_right(timestamp_ms: int, accepted: Acceptance) -> bool:
    """Whether a record's timestamp, in ms since 1970, was right when it was accepted, as far as that can be told."""
    before = max(SLACK, accepted.waited_ms)
    return accepted.earliest_ms - before <= timestamp_ms <= accepted.latest_ms + SLACK
