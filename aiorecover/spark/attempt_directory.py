"""The directory of one attempt, on the executor: made for it, removed with it, unless it holds what is nowhere else."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from aiorecover.errors import ConfigError

__all__ = ["AttemptDirectory"]

_PREFIX = "aiorecover-sink-"
_KEPT_PREFIX = "aiorecover-dead-letters-"
_WAL = "wal"
_LEFT_AFTER_S = 3600.0  # an attempt that was killed: nobody has its lock, and it was not begun just now


class AttemptDirectory:
    """Made at once, and what attempts that were killed have left there is removed."""

    def __init__(self, parent: str | None) -> None:
        """``parent`` is an existing directory; None: where temporary files are.

        Raises:
            ConfigError: nothing can be made there.

        """
        above = Path(parent or tempfile.gettempdir())
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
        except OSError as error:
            raise ConfigError(
                f"wal_dir must be a directory on every executor that Spark's user may write to: make it, or leave it "
                f"out wal_dir={above} host={socket.gethostname()} error={error.strerror}"
            ) from None
        self._kept = False
        _sweep(above)

    @property
    def wal_dir(self) -> Path:
        """The producer's."""
        return self.path / _WAL

    @property
    def letters(self) -> Path:
        """The file for dead letters that have no copy in Kafka."""
        return self.path / "dead_letters.jsonl"

    @property
    def refused(self) -> Path:
        """The file for rows that no record could be made of."""
        return self.path / "refused.jsonl"

    def remove_unless_kept(self) -> None:
        """With all that is in it."""
        if not self._kept:
            shutil.rmtree(self.path, ignore_errors=True)

    def keep(self) -> str:
        """Give it the name of what is kept, without the rings; where it is then, as ``host:directory``."""
        shutil.rmtree(self.wal_dir, ignore_errors=True)  # tens of MiB, however little is in them
        kept = self.path.with_name(self.path.name.replace(_PREFIX, _KEPT_PREFIX, 1))
        self.path.rename(kept)
        self.path, self._kept = kept, True
        return f"{socket.gethostname()}:{kept}"


def _sweep(above: Path) -> None:
    for left in above.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or swept by somebody else
            if left.stat().st_uid == os.geteuid() and time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                _remove_unless_used(left)


def _remove_unless_used(left: Path) -> None:
    locks = [open(lock, "rb") for lock in left.glob(f"{_WAL}/*/lock")]  # noqa: PTH123, SIM115 - closed below
    try:
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left, ignore_errors=True)
    finally:
        for lock in locks:
            lock.close()
