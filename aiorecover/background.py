"""The coroutines beside delivery, from start to stop: loops only."""

import asyncio
import errno

from aiorecover.adoption import Adoption
from aiorecover.errors import WalIOError
from aiorecover.kafka.expiry import Expiry
from aiorecover.ring.directory import Directory

OWNER_S = 1.0  # between two looks at the paths of our files
EXPIRY_S = 0.5  # between two looks for records that are too old


async def watch_owner(directory: Directory) -> None:
    """Stop as soon as a file of the directory is removed or replaced: another process may have it.

    Raises:
        WalIOError: it was.

    """
    while True:
        await asyncio.sleep(OWNER_S)
        replaced = await asyncio.to_thread(directory.replaced)
        if replaced is not None:
            raise WalIOError(errno.ESTALE, replaced, str(directory.path))


async def expire(expiry: Expiry, limit_s: float) -> None:
    """Bury records that could not be delivered in time (``delivery_timeout_ms``)."""
    while True:
        await asyncio.sleep(min(EXPIRY_S, limit_s / 4))
        expiry.bury_before(expiry.ring.files.now_ms() / 1000 - limit_s)


async def adopt_orphans(adoption: Adoption) -> None:
    """Deliver what processes that are gone have left in the same ``wal_dir``."""
    pause_s = adoption.look_s
    while True:
        await asyncio.sleep(pause_s)
        pause_s = await adoption.look()
