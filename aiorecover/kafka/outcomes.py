"""Outcomes: the meaning of each error code for the batch that it answers, in one table. Pure.

Two questions, independent of each other. *Action*: what does the lane do with its batch? *Persisted*: may the records
be in the partition all the same? A refusal that comes before anything is appended is NOT; whatever leaves it open is
POSSIBLY, which costs a look into Kafka (R11) where NOT, wrongly said, would lose a batch or store it twice.

1. An answer about one partition says nothing about the others in the request.
2. Only a verdict on the records themselves (size, timestamp, contents) makes them dead letters. A fault of rights, of
   the topic's configuration or of the cluster stalls the lane until an operator mends it.
3. A code that no producer should meet, or that is not in the table, is retried as possibly persisted.
"""

import enum
from typing import Final, NamedTuple


class Action(enum.Enum):
    """The next step of a lane with its batch."""

    DONE = enum.auto()
    RETRY = enum.auto()  # the same batch, the same identity, after a back-off
    MOVED = enum.auto()  # likewise, after newer metadata
    FOLLOWERS = enum.auto()  # likewise, apart from the lanes that get through
    STALL = enum.auto()  # likewise, after a long back-off: an operator has to mend something
    SPLIT = enum.auto()  # a smaller batch may pass
    REFUSED = enum.auto()  # halve it until the record at fault stands alone
    NEW_IDENTITY = enum.auto()  # under another identity
    NEW_PRODUCER = enum.auto()  # under another Kafka producer id: the one of this process is not valid any more


class Persisted(enum.Enum):
    """Whether the records are in the partition, as far as is known."""

    NOT = "not"
    POSSIBLY = "possibly"
    YES = "persisted"


class Outcome(NamedTuple):
    """The meaning of an answer; ``reason`` is for logs, dead letters and errors."""

    action: Action
    persisted: Persisted
    reason: str


_NOT, _POSSIBLY, _YES = Persisted.NOT, Persisted.POSSIBLY, Persisted.YES

OUTCOMES: Final[dict[int, Outcome]] = {
    0: Outcome(Action.DONE, _YES, "acknowledged"),
    46: Outcome(Action.DONE, _YES, "it was there already"),
    # the partition is elsewhere, or on its way: with acks=all a leader appends before it loses the partition
    3: Outcome(Action.MOVED, _POSSIBLY, "the broker does not have the partition"),
    5: Outcome(Action.MOVED, _NOT, "the partition has no leader"),
    6: Outcome(Action.MOVED, _POSSIBLY, "the broker does not lead the partition any more"),
    8: Outcome(Action.MOVED, _NOT, "the broker is not available"),
    9: Outcome(Action.MOVED, _POSSIBLY, "the replica is not available"),
    56: Outcome(Action.MOVED, _POSSIBLY, "the broker's storage failed"),
    72: Outcome(Action.MOVED, _NOT, "the leader has no listener of this name"),
    74: Outcome(Action.MOVED, _NOT, "the leader is newer than the metadata"),
    75: Outcome(Action.MOVED, _NOT, "the metadata are newer than the leader"),
    # its replicas
    7: Outcome(Action.FOLLOWERS, _POSSIBLY, "the replicas did not follow in time"),
    19: Outcome(Action.FOLLOWERS, _NOT, "too few replicas are in sync"),
    20: Outcome(Action.FOLLOWERS, _POSSIBLY, "appended with too few replicas in sync"),
    # the broker, for a while
    -1: Outcome(Action.RETRY, _POSSIBLY, "the broker failed without saying why"),
    2: Outcome(Action.RETRY, _NOT, "the batch arrived damaged"),
    13: Outcome(Action.RETRY, _POSSIBLY, "the broker's network failed"),
    14: Outcome(Action.RETRY, _NOT, "the coordinator is loading"),
    15: Outcome(Action.RETRY, _NOT, "the coordinator is not available"),
    51: Outcome(Action.RETRY, _NOT, "another transaction is being finished"),
    89: Outcome(Action.RETRY, _NOT, "a quota is used up"),
    # an operator has to mend something
    17: Outcome(Action.STALL, _NOT, "kafka takes no records for this topic: its name is invalid, or it is internal"),
    21: Outcome(Action.STALL, _NOT, "the broker refuses acks=all"),
    29: Outcome(Action.STALL, _NOT, "not authorized: grant Write on the topic"),
    30: Outcome(Action.STALL, _NOT, "not authorized: grant Read on the group of the transactional id"),
    31: Outcome(Action.STALL, _NOT, "not authorized: grant Write on a topic, or IdempotentWrite on the cluster"),
    35: Outcome(Action.STALL, _NOT, "the broker does not know this version of the request"),
    42: Outcome(Action.STALL, _NOT, "the broker does not understand the request"),
    43: Outcome(Action.STALL, _NOT, "the topic's message format is too old: raise log.message.format.version"),
    50: Outcome(Action.STALL, _NOT, "the brokers allow no transaction that long: lower transaction_timeout_ms"),
    53: Outcome(Action.STALL, _NOT, "not authorized: grant Write and Describe on the transactional id"),
    76: Outcome(Action.STALL, _NOT, "the topic does not take this compression: change compression_type"),
    # the records
    10: Outcome(Action.SPLIT, _NOT, "too large for the topic (max.message.bytes)"),
    18: Outcome(Action.SPLIT, _NOT, "the batch is too large for the topic (segment.bytes)"),
    32: Outcome(Action.REFUSED, _NOT, "the topic refuses the timestamp"),
    44: Outcome(Action.REFUSED, _NOT, "the broker's policy refuses the record"),
    87: Outcome(
        Action.REFUSED, _NOT, "the broker's validation refuses the record (a null key in a compacted topic, say)"
    ),
    # the identity
    45: Outcome(Action.NEW_IDENTITY, _NOT, "the broker expects another sequence"),
    47: Outcome(Action.NEW_IDENTITY, _NOT, "the broker knows a newer producer epoch"),
    49: Outcome(Action.NEW_PRODUCER, _NOT, "the broker does not know this producer id"),
    59: Outcome(Action.NEW_IDENTITY, _NOT, "the broker has forgotten this producer id"),
    90: Outcome(Action.NEW_IDENTITY, _NOT, "another producer has fenced this one"),
}


def outcome_of(code: int) -> Outcome:
    """Return what an answer with this error code means."""
    found = OUTCOMES.get(code)
    return found or Outcome(Action.RETRY, _POSSIBLY, f"the broker answered with error code {code}")


LOST: Final = Outcome(Action.MOVED, _POSSIBLY, "no answer came back")
NOT_SENT: Final = Outcome(Action.MOVED, _NOT, "not sent: no connection to the broker")
UNREAD: Final = Outcome(
    Action.RETRY, _NOT, "kafka cannot be read, which has to come first: records may have been sent before"
)
