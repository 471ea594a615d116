"""The states of a lane in delivery: one table, and what delivery keeps of each lane.

A lane is looked at by one broker task at a time, the one that leads its partition; what has gone wrong with it decides
when it is looked at again. `step` is the only place where a state changes.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from aiorecover.ring.lane import Lane
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.broker_task import BrokerTask


class LaneState(enum.Enum):
    """The state of a lane in delivery."""

    IDLE = enum.auto()  # nothing waits in it
    FILLING = enum.auto()  # its open batch has records
    SEALED = enum.auto()  # its oldest batch can be sent
    IN_FLIGHT = enum.auto()  # it is in a request
    BACKING_OFF = enum.auto()  # it is sent again later
    HELD = enum.auto()  # its oldest batch is being rewritten, looked for, or reported
    HALTED = enum.auto()  # it waits for the next start


class Event(enum.Enum):
    """Something that happens to a lane and may change its state."""

    FILLED = enum.auto()  # a record came into the open batch
    FULL = enum.auto()  # a batch was sealed
    SENT = enum.auto()
    EMPTY = enum.auto()  # the batch is done, and nothing is left
    NEXT_OPEN = enum.auto()  # ... an open batch is left
    NEXT_SEALED = enum.auto()  # ... a sealed one is
    FAILED = enum.auto()
    DUE = enum.auto()  # the back-off is over
    HOLD = enum.auto()
    HALT = enum.auto()


_FREE = tuple(state for state in LaneState if state is not LaneState.HALTED)

TRANSITIONS: Final[Mapping[tuple[LaneState, Event], LaneState]] = MappingProxyType(
    {
        (LaneState.IDLE, Event.FILLED): LaneState.FILLING,
        (LaneState.IDLE, Event.FULL): LaneState.SEALED,
        (LaneState.FILLING, Event.FILLED): LaneState.FILLING,
        (LaneState.FILLING, Event.FULL): LaneState.SEALED,
        (LaneState.SEALED, Event.FILLED): LaneState.SEALED,
        (LaneState.SEALED, Event.FULL): LaneState.SEALED,
        (LaneState.SEALED, Event.SENT): LaneState.IN_FLIGHT,
        # while a batch is on its way, its successors fill up and are sealed
        **{
            (state, event): state
            for state in (LaneState.IN_FLIGHT, LaneState.BACKING_OFF, LaneState.HELD, LaneState.HALTED)
            for event in (Event.FILLED, Event.FULL)
        },
        (LaneState.IN_FLIGHT, Event.FAILED): LaneState.BACKING_OFF,
        (LaneState.HELD, Event.FAILED): LaneState.BACKING_OFF,
        (LaneState.BACKING_OFF, Event.DUE): LaneState.SEALED,
        **{(state, Event.HOLD): LaneState.HELD for state in _FREE},
        **{(state, Event.HALT): LaneState.HALTED for state in (*_FREE, LaneState.HALTED)},
        **{
            (state, event): target
            for state in _FREE
            for event, target in (
                (Event.EMPTY, LaneState.IDLE),
                (Event.NEXT_OPEN, LaneState.FILLING),
                (Event.NEXT_SEALED, LaneState.SEALED),
            )
        },
    }
)

NO_LIMIT: Final = 1 << 62
WAITING: Final = frozenset({LaneState.FILLING, LaneState.SEALED, LaneState.BACKING_OFF})  # a broker task looks at these


class DeliveryLane:
    """A lane on its way to Kafka.

    Attributes:
        task: the broker task that looks at it; None: its leader is not known.
        due: loop time at which a FILLING lane has lingered, or a BACKING_OFF one is sent again.
        tries: failures since something got through.
        trouble: it goes through the second connection, apart from the lanes that get through.
        checked: what another boot left of it was looked for in Kafka, as far as it has to be (R11).
        doubt: an attempt of the oldest batch may have persisted it.
        producer, sequence: the identity of its next batch: Kafka producer id and epoch, base sequence.
        error: the last failure; None: it gets through.
        most: bytes of a batch that may pass; larger ones were refused, and are halved before they are sent.

    """

    __slots__ = (
        "acknowledged", "checked", "doubt", "due", "error", "most", "producer", "sequence", "state", "stored", "task",
        "topic", "tries", "trouble",
    )  # fmt: skip

    def __init__(self, stored: Lane, topic: Any) -> None:
        self.stored, self.topic = stored, topic
        self.state = LaneState.IDLE
        self.task: BrokerTask | None = None
        self.due = 0.0
        self.tries = 0
        self.trouble = self.doubt = self.acknowledged = self.checked = False
        self.producer: tuple[int, int] | None = None
        self.sequence = 0
        self.error: str | None = None
        self.most = NO_LIMIT

    def __repr__(self) -> str:
        """Name topic, partition and state."""
        return f"<lane {self.stored} {self.state.name}>"

    def step(self, event: Event) -> None:
        """Follow the table.

        Raises:
            KeyError: the event cannot happen in this state.

        """
        self.state = TRANSITIONS[self.state, event]

    @property
    def head(self) -> Batch | None:
        """The oldest batch that is not done, sealed."""
        return self.stored.head

    def contents(self) -> Event:
        """Return which of EMPTY, NEXT_OPEN and NEXT_SEALED the lane's contents are."""
        if self.stored.queue or self.stored.later:
            return Event.NEXT_SEALED
        return Event.NEXT_OPEN if self.stored.published.batch is not None else Event.EMPTY

    def succeeded(self) -> None:
        """Forget the failures: a batch got through."""
        self.tries = 0
        self.doubt = False
        self.error = None
        self.acknowledged = True
