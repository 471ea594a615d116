"""Two sessions: one for the lanes that are well, one for those that hold up their neighbours.

The second one is made when it is first needed, and closed a minute after its last lane has left. A lane moves between
two attempts to send one batch: at that moment the batch is in no session (`requests`), and carries the lane's identity
with it, so the broker takes it for the same. A lane that is suspect while the second session does not connect either
stays where it is: then it is not the lane.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from math import inf

from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from aiorecover.config import Config
from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.cluster import Cluster
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.delivery.lines import SuspectLines
from aiorecover.delivery.outcomes import Persisted, SilentError, Verdict, outcome_of
from aiorecover.delivery.session import Session, SessionLostError
from aiorecover.delivery.suspicion import Suspicion
from aiorecover.delivery.untimely import Untimely
from aiorecover.errors import ClosedError

log = logging.getLogger("aiorecover.session")

REPEAT_MAX = 0.5  # seconds between two attempts: delivery must resume within 1 s of a partition's return
ATTEMPTS_PER_SECOND = 100  # of all suspects together: a thousand dead partitions must not cost the machine
CONNECT_PATIENCE = 3.0  # seconds that a suspect waits for the second session, instead of stalling the others again
IDLE_LIMIT = 60.0  # seconds without a suspect until the second session is closed: they often come again
LOUD_ATTEMPTS = frozenset({10, 100, 1_000, 10_000, 100_000})  # a batch that fails so often is worth a line


IDENTITY_LOOK = 0.05  # seconds; a session that was given up is left in the next turns of the loop, another takes 5 ms
CONNECT_LOOK = 1.0  # seconds between two questions whether a batch shall wait on for a session


class GivenUpError(Exception):
    """A batch shall not be sent any more, and no attempt of it is under way."""


class Sessions:
    """Sends each lane's batches through the session that it belongs to, again and again where that helps."""

    def __init__(
        self,
        config: Config,
        on_metadata: Callable[[], None],
        on_failed: Callable[[Lane, float | None], None] = lambda *_: None,
        cluster: Cluster | None = None,
        untimely: Untimely | None = None,
        transactional_id: str | None = None,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Do nothing yet; ``on_metadata`` is called when topics may have changed.

        ``on_failed`` is told of each attempt that failed and when it began (`time.monotonic`); None for the time: the
        session was lost, or the records are at fault, and nothing is known of the lane. ``cluster``: as in `Session`.
        ``untimely`` tells whether it is the records that are at fault where their timestamps are refused; None: it is.
        ``transactional_id``: as in `Session`; then there is no second one, and no lane is suspect. ``clock_ms``: time
        since the machine's boot.
        """
        self._cluster = Cluster() if cluster is None else cluster
        self.healthy = Session(config, on_metadata, cluster=self._cluster, transactional_id=transactional_id)
        self._suspects = transactional_id is None
        self._config = config
        self._on_failed = on_failed
        self._untimely = untimely
        self._clock_ms = clock_ms
        self._second: Session | None = None
        self._beside: list[Session] = []
        self._suspicions: dict[Lane, Suspicion] = {}
        self._moved: dict[Lane, None] = {}  # suspects whose batches go through the second session
        self._through = 0  # batches acknowledged by the healthy session
        self._idle: asyncio.TimerHandle | None = None
        self._closers: set[asyncio.Task[None]] = set()
        self._lines = SuspectLines(lambda: len(self._moved))
        self._closing = False
        self.resent = 0  # batches that were sent more than once

    @property
    def lanes_suspect(self) -> int:
        """Lanes in the second session."""
        return len(self._moved)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return any(session.interrupted for session in self._all())

    # -- for the lanes -----------------------------------------------------------------------------------------------

    async def identity(self, lane: Lane, over: Callable[[], bool] | None = None) -> Identity:
        """A producer id that the broker has just given out, for a lane without one; ``over``: as in `send`.

        One of which the lane has used up the epochs, some 32,000, ends with its session: there is no other way to ask.
        """
        while True:
            await self._connected(self.healthy, over)
            found = await self.healthy.identity()
            if found.producer_id != lane.used_up:
                return found
            self.healthy.give_up("a lane has used up the epochs of its producer id")
            await asyncio.sleep(IDENTITY_LOOK)

    async def _connected(self, session: Session, over: Callable[[], bool] | None, patience: float = inf) -> bool:
        """Whether it is, as soon as it is, and within ``patience`` seconds."""
        waited = 0.0
        while not await session.connected_within(min(CONNECT_LOOK, patience)):
            if over is not None and over():  # an age that is up does not wait for a frozen broker, too
                raise GivenUpError
            waited += CONNECT_LOOK
            if waited >= patience:
                return False
        return True

    def give_up(self, lane: Lane, reason: str) -> None:
        """Build the lane's session anew."""
        session = self._second if lane in self._moved else self.healthy
        if session is not None:
            session.give_up(reason)

    async def send(self, lane: Lane, batch: LaneBatch, over: Callable[[], bool] | None = None) -> RecordMetadata:
        """Send one batch until it is acknowledged, or something else than another attempt is to be decided.

        ``over``: asked before each attempt, and while there is no session, whether it shall not be sent any more.

        Raises:
            GivenUpError: ``over`` said so.
            SessionLostError: the session died first; the batch is possibly persisted: send the same again.
            KafkaError: what Kafka answered.
            ClosedError: the sessions are closed.

        """
        pauses: Backoff | None = None
        while True:
            session = await self._session_of(lane, over) if lane in self._suspicions else self.healthy
            await self._connected(session, over)
            if over is not None and over():
                raise GivenUpError
            began = time.monotonic()
            batch.begin_attempt(time.time_ns() // 1_000_000, self._clock_ms())
            if batch.attempts == 2:  # noqa: PLR2004 - the first time that it is sent again
                self.resent += 1
            try:
                metadata = await session.send(batch, lane.topic, lane.partition)
            except KafkaError as answer:
                error = answer if self._untimely is None else await self._untimely.judged(lane, batch, answer)
                batch.trouble = repr(error)
                self._on_failed(lane, began if _is_of_the_lane(error) else None)
                if not _is_repeated(batch, error):
                    raise error from None
                self._failed(lane, error)
                tell_stuck(lane, batch, error)
            else:
                self._acknowledged(lane, session, began)
                return metadata
            pauses = pauses or self._pauses()
            await asyncio.sleep(max(pauses.next(), len(self._moved) / ATTEMPTS_PER_SECOND))

    def forget(self, lane: Lane) -> None:
        """Nothing is sent to it any more."""
        self._suspicions.pop(lane, None)
        if lane in self._moved:
            del self._moved[lane]
            if not self._moved:
                self._wait_idle()

    def _pauses(self) -> Backoff:
        longest = min(REPEAT_MAX, self._config.retry_backoff_max_ms / 1000)
        return Backoff(self._config.retry_backoff_ms / 1000, longest, random.uniform)

    def _failed(self, lane: Lane, error: KafkaError) -> None:
        if not self._suspects:
            return
        suspicion = self._suspicions.setdefault(lane, Suspicion())
        silent = isinstance(error, SilentError)
        if suspicion.failed(time.monotonic(), self._through, silent=silent):
            suspicion.why = repr(error)
            log.debug("a lane is suspect topic=%s partition=%d error=%r", lane.topic, lane.partition, error)

    def _acknowledged(self, lane: Lane, session: Session, began: float) -> None:
        if session is self.healthy:
            self._through += 1
        if self._untimely is not None:
            self._untimely.through(lane)
        suspicion = self._suspicions.get(lane) if self._suspicions else None
        if suspicion is None:
            return
        now = time.monotonic()
        if suspicion.acknowledged(now, began) and lane in self._moved:
            del self._moved[lane]
            self._lines.tell_well(lane)
            if not self._moved:
                self._wait_idle()
        if suspicion.forgotten(now):
            del self._suspicions[lane]

    def beside(self, name: str) -> Session:
        """One more, for what no lane sends: it holds up nobody. To be started; closed with the others.

        Raises:
            ClosedError: the sessions are closed.

        """
        if self._closing:
            raise ClosedError("the producer is stopped")
        session = Session(self._config, lambda: None, cluster=self._cluster, healthy=self.healthy, name=name)
        self._beside.append(session)
        return session

    # -- the second session ------------------------------------------------------------------------------------------

    async def _session_of(self, lane: Lane, over: Callable[[], bool] | None) -> Session:
        if not self._suspicions[lane].suspect or self._closing:
            return self.healthy
        second = self._second or self._begin_second()
        if not await self._connected(second, over, CONNECT_PATIENCE):
            self._moved.pop(lane, None)
            return self.healthy
        if lane not in self._moved:
            self._moved[lane] = None
            self._lines.tell(lane, self._suspicions[lane].why)
        return second

    def _begin_second(self) -> Session:
        self._second = Session(self._config, lambda: None, cluster=self._cluster, healthy=self.healthy)
        self._second.start()
        self._wait_idle()
        return self._second

    def _wait_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_LIMIT, self._end_second)

    def _end_second(self) -> None:
        """Close it, if nobody is about to use it; every suspect stands in `_suspicions` until then."""
        now = time.monotonic()
        self._trust_idle(now)
        self._suspicions = {lane: held for lane, held in self._suspicions.items() if not held.forgotten(now)}
        if any(suspicion.suspect for suspicion in self._suspicions.values()):
            self._wait_idle()
            return
        second, self._second = self._second, None
        if second is not None:
            closer = asyncio.get_running_loop().create_task(second.close(), name="aiorecover-suspects-closer")
            self._closers.add(closer)
            closer.add_done_callback(self._closers.discard)

    def _trust_idle(self, now: float) -> None:
        """A lane that got through, and has had nothing to send since, would keep the second session for ever."""
        for lane, suspicion in self._suspicions.items():
            if lane.in_flight is None and suspicion.rested(now):
                self._moved.pop(lane, None)
                self._lines.tell_well(lane)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background: a broker is not needed to start."""
        self.healthy.start()

    async def close(self) -> None:
        """End within a few seconds, whatever the broker does; batches in flight fail with `SessionLostError`."""
        self._closing = True
        self._lines.close()
        if self._idle is not None:
            self._idle.cancel()
        await asyncio.gather(*(session.close() for session in self._all()), *self._closers)

    def _all(self) -> list[Session]:
        return [session for session in (self.healthy, self._second, *self._beside) if session is not None]


def tell_stuck(lane: Lane, batch: LaneBatch, error: BaseException) -> None:
    """One line now and then, of a batch that is tried again and again."""
    if batch.attempts in LOUD_ATTEMPTS:
        log.warning(
            "a batch does not get through, trying on topic=%s partition=%d attempts=%d error=%r",
            lane.topic,
            lane.partition,
            batch.attempts,
            error,
        )


def _is_of_the_lane(error: KafkaError) -> bool:
    """Whether the lane itself does not get through, or may not."""
    return not isinstance(error, SessionLostError) and outcome_of(error).verdict is Verdict.RETRIABLE


def _is_repeated(batch: LaneBatch, error: KafkaError) -> bool:
    """Whether the error asks for nothing but another attempt; what it says of the broker's log is noted."""
    if isinstance(error, SessionLostError):
        return False
    outcome = outcome_of(error)
    if outcome.persisted is not Persisted.NOT:
        batch.possibly = True
    return error.retriable and outcome.verdict is Verdict.RETRIABLE
