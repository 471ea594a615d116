"""Which Kafka cluster a directory belongs to: the first one that its records went to, or the one that an option names.

Another one may answer where it was: a wrong address, a test system, a restored broker, a port that now leads elsewhere.
Nothing is sent to it (`cluster_guard`).
"""

import logging
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

from aiorecover.errors import WalDestinationError, WalError

log = logging.getLogger("aiorecover.session")


class WrongClusterError(KafkaError):
    """Another cluster answered; nothing was sent to it."""

    retriable = True

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


async def _nothing() -> None:
    return


class Cluster:
    """What is known of the one cluster, for all sessions of a producer.

    ``id``: of the cluster that the records belong to; None as long as none was reached, or if it tells no id.
    ``wrong_id``: of another one, which answered in its place; None on a good day.
    """

    def __init__(
        self,
        stored: str | None = None,
        given: str | None = None,
        *,
        remember: Callable[[], Awaitable[None]] = _nothing,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``stored``: the id that the directory remembers; ``given``: the one that the user names, which counts.

        ``remember`` makes `id` durable; ``on_change`` is called whenever `wrong_id` is another one.
        """
        self.id = stored
        self.wrong_id: str | None = None
        self._given = given
        self._remember = remember
        self._on_change = on_change
        self._told = False

    def is_ours(self, found: str | None) -> bool:
        """Whether records may go there; what tells no id is not compared."""
        expected = self._given or self.id
        return found is None or expected is None or found == expected

    async def admit(self, found: str | None) -> None:
        """Take it for ours from now on; durable before anything is sent there, unless the disk fails.

        Raises:
            WrongClusterError: it is another one.

        """
        if found is None:
            self._tell_unknown()
        elif not self.is_ours(found):
            raise WrongClusterError(found)
        elif found != self.id:
            if self.id is not None:
                log.warning("the records go to another cluster from now on, as asked for from=%s to=%s", self.id, found)
            self.id = found
            try:
                await self._remember()
            except WalError as error:  # delivery goes on while the disk fails (I7)
                log.warning("the cluster is not remembered yet: check the disk cluster_id=%s error=%s", found, error)
        self.is_wrong(None)

    def is_wrong(self, found: str | None) -> None:
        """Another cluster answered, or (None) it does no longer."""
        if found != self.wrong_id:
            self.wrong_id = found
            self._on_change()

    def error(self, found: str) -> WalDestinationError:
        """What is wrong, and what to do."""
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
            log.info("kafka tells no cluster id: whether it is always the same one cannot be checked")
