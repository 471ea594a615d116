"""Faults that are planted on purpose: a proof that stays green with one of them proves nothing."""

from collections.abc import Callable

from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile
from aiorecover.wal.storage import StorageFile
from aiorecover.wal.sync import GroupCommit

__all__ = ["FAULTS", "plant"]


def flush_nothing() -> None:
    """Whatever is to be flushed is called flushed."""

    def nothing(self: StorageFile) -> None:
        return

    StorageFile.sync = nothing  # type: ignore[method-assign]


def share_the_running_flush() -> None:
    """A publisher is released by an fdatasync that began before its store."""
    durable = GroupCommit.durable

    async def shared(self: GroupCommit, *, patient: bool = False) -> None:
        if self._task is None or self._task.done():
            await durable(self, patient=patient)

    GroupCommit.durable = shared  # type: ignore[method-assign]


def keep_the_epoch_in_memory() -> None:
    """Against I5: the epoch becomes durable with the first record, not before it."""

    def nothing(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        return

    CheckpointFile.write_both = nothing  # type: ignore[method-assign]


_FAULTS = (flush_nothing, share_the_running_flush, keep_the_epoch_in_memory)
FAULTS: dict[str, Callable[[], None]] = {fault.__name__: fault for fault in _FAULTS}


def plant(fault: str) -> None:
    """Break the library in this process."""
    FAULTS[fault]()
