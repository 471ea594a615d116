"""What the library takes for its machine's boot, in the process that is to believe it."""

from aiorecover.wal.storage import FileSystem

__all__ = ["boot", "later"]

_HOUR_MS = 3_600_000


def boot(boot_id: str) -> None:
    """Make it believe that the machine was started anew."""
    setattr(FileSystem, "boot_id", lambda _: boot_id)  # noqa: B010 - of this process, which has no other life


def later(hours: int) -> None:
    """Make it believe that so much more time has passed since the boot."""
    since_boot_ms = FileSystem.since_boot_ms
    setattr(FileSystem, "since_boot_ms", lambda self: since_boot_ms(self) + hours * _HOUR_MS)  # noqa: B010 - as above
