"""The guarantee that what waits was accepted with: no other one may deliver it.

Under ``exactly_once`` a position in Kafka tells what is there, otherwise the settle words and the journal do.
"""

import msgspec

from aiorecover.delivery.resume import Taken
from aiorecover.errors import ConfigError
from aiorecover.wal.checkpoint import Transactional
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import RETRY, RING
from aiorecover.wal.view import view_of


def check_guarantee(directory: Directory, guarantee: str) -> None:
    """What waits has to be delivered as it was accepted: nothing else knows what of it is in Kafka.

    Raises:
        ConfigError: the option is another one than when it was.

    """
    if directory.checkpoint.destination.cluster_id is None:  # nothing of it can be in Kafka; or nobody knows any more
        return
    was = "at_least_once" if directory.checkpoint.destination.transactional is None else "exactly_once"
    if was != guarantee and _waits(directory):
        message = (
            f"records wait that were accepted with guarantee={was!r}: start with that once, until all is delivered"
        )
        raise ConfigError(f"{message} guarantee={guarantee!r}")


def check_in_flight(taken: Taken, guarantee: str) -> None:
    """A batch that may be in Kafka without a transaction is no part of one; also where Kafka tells no cluster id.

    Raises:
        ConfigError: there is one.

    """
    if guarantee == "exactly_once" and any(resumed.frames for resumed in taken.lanes):
        message = "batches are in flight that were sent with guarantee='at_least_once': start with that once"
        raise ConfigError(f"{message}, until all is delivered guarantee={guarantee!r}")


def keep_guarantee(directory: Directory, guarantee: str) -> None:
    """Have it durable before anything is accepted with it.

    Raises:
        WalError: the disk failed.

    """
    destination = directory.checkpoint.destination
    transactional = destination.transactional or Transactional() if guarantee == "exactly_once" else None
    if transactional != destination.transactional:
        kept = msgspec.structs.replace(destination, transactional=transactional)
        directory.write_checkpoint(directory.next_checkpoint(destination=kept))


def _waits(directory: Directory) -> bool:
    """Whether a record does; what nobody has counted is looked for. Of suspect settle words nobody knows."""
    if directory.ring.suspect.up_to > directory.ring.floor:
        return True
    for ring in (RING, RETRY):
        with view_of(directory, ring) as view:
            if next(view.frames(), None) is not None:
                return True
    return False
