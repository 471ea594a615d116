"""Free ports of 127.0.0.1 that stay ours while a broker is down.

Port 0 will not do: its ports come from the range that outgoing connections draw from as well, so that any
connection of the machine may take a killed broker's port before its restart; a client that tries a dead port
of that range again and again can even end up connected to itself. So the ports are taken from below that
range, and other test processes are kept away by a locked file for each port.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["ReservedPorts"]

_FIRST = 20_000
_USUAL_END = 32_768  # where Linux starts to number outgoing connections, unless told otherwise
_RANGE_OF_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPorts:
    """So many free ports; no other process that asks here gets them before `release` or the end of this one."""

    def __init__(self, count: int) -> None:
        self._locks: list[IO[bytes]] = []
        self.numbers: tuple[int, ...] = self._reserve(count)

    def release(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def _reserve(self, count: int) -> tuple[int, ...]:
        end = _end_of_range()
        chosen: list[int] = []
        for port in random.sample(range(_FIRST, end), end - _FIRST):
            if len(chosen) == count:
                break
            if self._lock(port):
                chosen.append(port)
        else:
            self.release()
            raise OSError(f"not enough free ports: {count=} first={_FIRST} {end=}")
        return tuple(chosen)

    def _lock(self, port: int) -> bool:
        lock = (_lock_directory() / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            return False
        self._locks.append(lock)
        return True


def _end_of_range() -> int:
    try:
        first_outgoing = int(_RANGE_OF_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_END
    # A machine whose outgoing connections use nearly everything has no quiet corner left: take the usual one.
    return first_outgoing if first_outgoing > _FIRST + 1_000 else _USUAL_END


def _lock_directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"aiorecover-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
