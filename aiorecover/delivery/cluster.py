"""Which Kafka cluster a directory belongs to: the first one that its records went to, or the one that an option names.

Another one may answer where it was: a wrong address, a test system, a restored broker, a port that now leads elsewhere.
Nothing is sent to it (`cluster_guard`).

Every Kafka that knows idempotent producers tells its id (since 0.10.1); a service that only speaks its protocol may
tell none. Where the option names a cluster, what tells none is refused: who names one wants no other. Where one is only
remembered, it is taken, and a warning says so: no option could name what has no id, and the records would wait for
ever. For a wrong address it would have to be the first one met that has none.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiokafka.errors import KafkaError

from aiorecover.errors import WalDestinationError, WalError
from aiorecover.wal.checkpoint import Destination

log = logging.getLogger("aiorecover.session")


NO_ID = ""  # in the place of the id of a cluster that tells none


class WrongClusterError(KafkaError):
    """Another cluster answered; nothing was sent to it. ``found``: its id, or `NO_ID`."""

    retriable = True

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


async def _nothing() -> None:
    return


class Cluster:
    """What is known of the one cluster, for all sessions of a producer.

    ``id``: of the cluster that the records belong to; None as long as none was reached, or if it tells no id.
    ``wrong_id``: of another one, which answered in its place, or `NO_ID`; None on a good day.
    """

    def __init__(
        self,
        stored: Destination | None = None,
        given: str | None = None,
        *,
        remember: Callable[[], Awaitable[None]] = _nothing,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``stored``: what the directory remembers; ``given``: the id that the user names, which counts.

        ``remember`` makes `destination` durable, within a bounded time (TimeoutError); ``on_change`` is called whenever
        `wrong_id` is another one.
        """
        self.destination = Destination() if stored is None else stored  # what a checkpoint is to say
        self.id = self.destination.cluster_id
        self.wrong_id: str | None = None
        self._given = given
        self._remember = remember
        self._on_change = on_change
        self._told = False
        self._asked = False

    @property
    def wanted(self) -> str | None:
        """Id of the only cluster that records are sent to; None: of the first one that is reached."""
        return self._given or self.id

    def is_ours(self, found: str | None) -> bool:
        """Whether records may go there; what tells no id is refused only where the user names one."""
        if found is None:
            return self._given is None
        return self.wanted in {None, found}

    async def admit(self, found: str | None) -> None:
        """Take it for ours from now on; durable before anything is sent there, unless the disk fails.

        Raises:
            WrongClusterError: it is another one.

        """
        if not self.is_ours(found):
            raise WrongClusterError(found or NO_ID)
        if found is None:
            self._tell_unknown()
        else:
            await self._take(found)
        self.is_wrong(None)

    async def _take(self, found: str) -> None:
        if found == self.id:
            return
        if self.destination.cluster_id != found:  # else it was begun, and cut off
            self.destination = _succeeded(self.destination, found)
            self._asked = False
        if self.id is not None:
            log.warning("the records go to another cluster from now on, as asked for from=%s to=%s", self.id, found)
        try:
            await self._remember()
        except (WalError, TimeoutError) as error:  # delivery goes on while the disk fails (I7)
            log.warning("the cluster is not remembered yet: check the disk cluster_id=%s error=%r", found, error)
        self.id = found

    async def learn_expiration(self, ask: Callable[[], Awaitable[int | None]]) -> None:
        """Have the next checkpoint say how long the brokers remember a producer; asked once, as that hardly changes.

        Where they tell nothing, what they told an earlier process counts. The answer is a hint: whatever goes wrong
        with the question, the session that asks it is used. Nor does it wait for the disk: nobody needs the answer
        there before the next opening, and with records on their way a checkpoint is never far.
        """
        if self._asked:
            return
        try:
            told = await ask()
        except Exception as error:  # noqa: BLE001 - see above; a cancellation is no answer, and is asked again
            log.warning("how long the brokers remember a producer is not known: they answer error=%r", error)
            told = None
        self._asked = True
        if told is not None:
            self.destination = msgspec.structs.replace(self.destination, expiration_ms=told)

    def is_wrong(self, found: str | None) -> None:
        """Another cluster answered, or (None) it does no longer."""
        if found != self.wrong_id:
            self.wrong_id = found
            self._on_change()

    def error(self, found: str) -> WalDestinationError:
        """What is wrong, and what to do."""
        if found == NO_ID:
            message = (
                "kafka tells no cluster id, so nothing tells whether it is the one that the option cluster_id names, "
                "nothing is sent: mend bootstrap_servers, or leave out the option"
            )
            return WalDestinationError(f"{message} given={self._given!r}")
        if self._given is not None:
            message = "kafka is not the cluster that the option cluster_id names, nothing is sent: mend one of the two"
            return WalDestinationError(f"{message} given={self._given!r} cluster_id={found!r}")
        message = (
            "kafka is another cluster than the one that the records belong to, nothing is sent: mend "
            f"bootstrap_servers, or if it was replaced on purpose start with the option cluster_id={found!r}"
        )
        return WalDestinationError(f"{message} stored={self.id!r} cluster_id={found!r}")

    def _tell_unknown(self) -> None:
        if not self._told:
            self._told = True
            level = logging.INFO if self.id is None else logging.WARNING
            log.log(level, "kafka tells no cluster id: whether it is always the same one cannot be checked")


def _succeeded(before: Destination, found: str) -> Destination:
    """The first cluster is no other one: nothing is kept of any before it."""
    number = before.cluster_number if before.cluster_id is None else before.next_number
    return Destination(cluster_id=found, name=before.name, cluster_number=number)
