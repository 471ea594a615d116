"""A network of its own for a process, and the cable to it, which can be cut: packets are dropped, nobody is told.

The kernel of a process that was killed goes on sending what it had been handed; with the cable cut it does so until
it is mended. Root is needed, and `ip`, `unshare` and `nsenter`.
"""

import random
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["Namespace", "not_installed", "why_impossible"]

_PROGRAMS: Final = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_READY_WITHIN_S: Final = 10.0
_ORPHAN_RETRIES: Final = 12  # of what a dead process left; by itself Linux gives up after 8, less than a minute


def not_installed() -> str | None:
    """The program that is missing here, and how it comes; None where all are there."""
    missing = [(program, package) for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    return "; ".join(f"{program} is not installed: apt-get install {package}" for program, package in missing) or None


def why_impossible() -> str | None:
    """Why no network namespace with a cable to it is granted here; None when it can be made."""
    try:
        with Namespace():
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        return f"a network namespace and a veth pair cannot be made, which takes root error={str(said).strip()}"


class Namespace:
    """The namespace, while it is entered; it ends with the process that made it, however that ends."""

    def __init__(self) -> None:
        number = random.SystemRandom().randrange(1 << 14)
        self.address = f"10.231.{number >> 6}.{(number & 63) * 4 + 1}"
        """Of this end of the cable: what listens there is reached from inside."""
        self._inside = f"10.231.{number >> 6}.{(number & 63) * 4 + 2}"
        self._cable = f"arec{number}"
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def prefix(self) -> list[str]:
        """The command that takes another command into the namespace."""
        assert self._holder is not None
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]

    def __enter__(self) -> Self:
        # It ends when its stdin does: with us.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._await_holder(self._holder)
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "cable", "netns", str(self._holder.pid))
            _ip("address", "add", f"{self.address}/30", "dev", self._cable)
            self.mend()
            for words in ("address add {}/30 dev cable", "link set cable up", "link set lo up"):
                _run(*self.prefix, "ip", *words.format(self._inside).split())
            _run(*self.prefix, "sh", "-c", f"echo {_ORPHAN_RETRIES} >/proc/sys/net/ipv4/tcp_orphan_retries")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def cut(self) -> None:
        """From now on every packet of either direction is dropped."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Packets pass."""
        _ip("link", "set", self._cable, "up")

    def _await_holder(self, holder: subprocess.Popen[bytes]) -> None:
        ours, theirs = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
        give_up_at = time.monotonic() + _READY_WITHIN_S
        while holder.poll() is None and time.monotonic() < give_up_at:
            if theirs.readlink() != ours.readlink():
                return
            time.sleep(0.01)
        raise PermissionError("unshare --net failed")

    def _end(self) -> None:
        """The cable goes at once: the namespace itself lives on while a dead process's packets are waiting in it."""
        subprocess.run(["ip", "link", "delete", self._cable], check=False, capture_output=True)
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
